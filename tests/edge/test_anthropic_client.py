"""Anthropic's library through a real HAProxy with the site's authority, and answers that vLLM has written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cached_folder import AS_LISTED, cached_folder, pip
from fakes import edge_cases
from fakes.raw_engine import STREAM, RawEngine
from fakes.running_edge import KEY, Engines, RunningEdge
from project_files import DATA
from vllm_spark.core import paths

HERE = Path(__file__).parent
ANSWERS = DATA / "anthropic"
LIFE_S = 120
# Case -> the answer of the engine, what the library makes of it, and what the log says: path, tokens, events.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("chat.json", {"text": ["Paris"], "tokens": 3}, "/v1/messages 33 3 -"),
    "stream": ("stream.sse", {"texts": ["Par", "is"], "tokens": 3}, "/v1/messages 33 3 7"),
    "tools": ("tools.sse", {"name": "get_weather", "input": {"city": "Paris"}}, "/v1/messages 155 9 8"),
    "count": ("count.json", {"tokens": 33}, "/v1/messages/count_tokens - - -"),
}


def packages() -> Path:
    """Return the folder with Anthropic's library, as listed."""
    listed = HERE / "requirements-anthropic.txt"

    def fill(folder: Path) -> None:
        pip("install", *AS_LISTED, "--no-compile", "--target", str(folder), "--requirement", str(listed))

    return cached_folder(paths.ROOT / ".cache" / "edge", "anthropic", listed.read_text(encoding="utf-8"), fill)


@pytest.fixture
def engine() -> RawEngine:
    return RawEngine()


@pytest.fixture
def edge(tmp_path: Path, engine: RawEngine) -> Iterator[RunningEdge]:
    engines = Engines(tmp_path / "run")
    running = RunningEdge(edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False}), tmp_path)
    engines.start("demo", engine)  # type: ignore[arg-type]
    running.start()
    running.wait_for("demo", "UP")
    yield running
    running.close()
    engines.close()


def said(edge: RunningEdge, case: str) -> list[dict[str, Any]]:
    """Return the lines that a case of anthropic_client.py prints."""
    env = {
        "PATH": os.defpath,
        "HOME": str(edge.folder),
        "PYTHONPATH": str(packages()),
        "SSL_CERT_FILE": str(edge.folder / "ca.crt"),
    }
    program = str(HERE / "anthropic_client.py")
    # -S: of this interpreter only the standard library.
    words = ["timeout", str(LIFE_S), sys.executable, "-S", program, case, f"https://127.0.0.1:{edge.port}", KEY]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_it_reads_what_the_engine_writes(edge: RunningEdge, engine: RawEngine, case: str) -> None:
    file, read, logged = CASES[case]
    engine.pieces = [(ANSWERS / file).read_bytes()]
    engine.kind = STREAM if file.endswith(".sse") else "application/json"
    assert said(edge, case) == [read]
    line = dict(word.partition("=")[::2] for word in edge.logged().split())
    assert " ".join(line[name] for name in ("path", "in_tokens", "out_tokens", "events")) == logged


def test_errors_are_those_of_anthropic(edge: RunningEdge) -> None:
    assert [(one["raised"], one["status"], one["type"]) for one in said(edge, "errors")] == [
        ("AuthenticationError", 401, "authentication_error"),
        ("ServiceUnavailableError", 503, "api_error"),
        ("NotFoundError", 404, "not_found_error"),
        ("ContentTooLargeError", 413, "request_too_large"),
    ]
