"""Anthropic's library through a real HAProxy with the site's authority, and answers that vLLM has written."""

from __future__ import annotations

from typing import Any

import pytest
from listed_client import answers

from conftest import Start
from fakes.raw_engine import STREAM, RawEngine
from fakes.running_edge import RunningEdge
from project_files import DATA

ANSWERS = DATA / "anthropic"
# Case -> the answer of the engine, what the library makes of it, and what the log says: path, tokens, events.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("chat.json", {"text": ["Paris"], "tokens": 3}, "/v1/messages 33 3 -"),
    "stream": ("stream.sse", {"texts": ["Par", "is"], "tokens": 3}, "/v1/messages 33 3 7"),
    "tools": ("tools.sse", {"name": "get_weather", "input": {"city": "Paris"}}, "/v1/messages 155 9 8"),
    "count": ("count.json", {"tokens": 33}, "/v1/messages/count_tokens - - -"),
}


@pytest.fixture
def engine() -> RawEngine:
    return RawEngine()


@pytest.fixture
def edge(start: Start) -> RunningEdge:
    return start()


@pytest.mark.parametrize("case", CASES)
def test_it_reads_what_the_engine_writes(edge: RunningEdge, engine: RawEngine, case: str) -> None:
    file, read, logged = CASES[case]
    engine.pieces = [(ANSWERS / file).read_bytes()]
    engine.kind = STREAM if file.endswith(".sse") else "application/json"
    assert answers("anthropic", edge, case) == [read]
    line = dict(word.partition("=")[::2] for word in edge.logged().split())
    assert " ".join(line[name] for name in ("path", "in_tokens", "out_tokens", "events")) == logged


def test_errors_are_those_of_anthropic(edge: RunningEdge) -> None:
    assert [(one["raised"], one["status"], one["type"]) for one in answers("anthropic", edge, "errors")] == [
        ("AuthenticationError", 401, "authentication_error"),
        ("ServiceUnavailableError", 503, "api_error"),
        ("NotFoundError", 404, "not_found_error"),
        ("ContentTooLargeError", 413, "request_too_large"),
    ]
