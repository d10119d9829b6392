"""`vllm-spark bench URL` against a server that streams by a script: its output, its evidence and its refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench_streams import steady, usage
from fakes import scripted_engine
from fakes.scripted_engine import MODEL, Stream
from vllm_spark.cli import main

pytestmark = pytest.mark.integration

# The profile smoke asks for 64 and for 16 tokens. This server always sends 64, which a fault would be.
EVENTS = steady(64, first=0.02, gap=0.002)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Run a scripted engine as a process and return its URL."""
    with scripted_engine.process([Stream(EVENTS, usage(EVENTS))], tmp_path) as url:
        yield url


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_run_prints_a_line_per_cell_and_writes_evidence(
    url: str, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.jsonl"
    main.main(["bench", f"{url}{suffix}", "--profile", "smoke", "-o", str(path)])
    lines = capsys.readouterr().out.splitlines()
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [record["record"] for record in records] == ["run", *["cell"] * (len(records) - 2), "end"]
    assert len(lines) == len(records)
    assert records[0]["subject"]["served_name"] == MODEL
    assert all(record["samples"] for record in records[1:-1])  # the server is on this machine
    assert lines[-2:] == [f"evidence: {path}", f"Next: vllm-spark bench report {path}"]
    assert main.main(["bench", "report", str(path)]) == 0
    assert "chat, 128 in, 64 out" in path.with_suffix(".html").read_text(encoding="utf-8")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["bench", *words]) == 1
    return capsys.readouterr().err


def test_refusals_name_what_to_change(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    output = ["-o", str(path)]
    assert f"serves {MODEL}, not other" in refused([url, "--model", "other", *output], capsys)
    assert "does not answer" in refused(["http://127.0.0.1:1", *output], capsys)
    assert "[::1/v1/models does not answer: Invalid IPv6 URL" in refused(["http://[::1", *output], capsys)
    assert "unknown profile" in refused([url, "--profile", "smook", *output], capsys)
    assert "--accept garbag" in refused([url, "--accept", "garbag", *output], capsys)
    assert "has no cell for" in refused([url, "--profile", "start", *output], capsys)
    assert not path.exists()
    main.main(["bench", url, "-o", str(path), "--profile", "smoke"])
    before = path.read_text(encoding="utf-8")
    said = refused([url, "-o", str(path), "--profile", "streams"], capsys)
    assert "is of a run with another profile — expected: a new file" in said
    assert path.read_text(encoding="utf-8") == before
