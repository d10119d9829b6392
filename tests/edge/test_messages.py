"""Anthropic's API through a real HAProxy: the second header of a key, the shape of errors, and old engines."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from test_streams import open_stream

from conftest import EVENTS, Start
from fakes import edge_cases
from fakes.running_edge import KEY, RunningEdge, in_front
from fakes.scripted_engine import ScriptedEngine
from vllm_spark.recipe import engine_paths
from vllm_spark.recipe.engine_paths import COUNT_TOKENS, MESSAGES

CHAT = "/v1/chat/completions"
QUESTION = {"model": "model", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
LARGE = {"Content-Length": str((1 << 20) + 1)}
BEARER, WRONG = f"Bearer {KEY}", "sk-of-nobody"
# How a client gives its key -> the status. A list has a header twice.
KEYS: Mapping[str, tuple[list[tuple[str, str]], int]] = {
    "bearer": ([("Authorization", BEARER)], 200),
    "x-api-key": ([("X-Api-Key", KEY)], 200),
    "both alike": ([("Authorization", BEARER), ("x-api-key", KEY)], 200),
    "none": ([], 401),
    "a wrong one": ([("x-api-key", WRONG)], 401),
    "an empty one": ([("x-api-key", "")], 401),
    "the hash": ([("x-api-key", "Bearer " + KEY)], 401),
    "a good and a wrong one": ([("Authorization", BEARER), ("x-api-key", WRONG)], 401),
    "a wrong and a good one": ([("Authorization", f"Bearer {WRONG}"), ("x-api-key", KEY)], 401),
    "another scheme and a good one": ([("Authorization", "Basic YTpi"), ("x-api-key", KEY)], 401),
    "an empty and a good one": ([("Authorization", ""), ("x-api-key", KEY)], 401),
    "x-api-key twice": ([("x-api-key", KEY), ("x-api-key", KEY)], 401),
    "bearer twice": ([("Authorization", BEARER), ("Authorization", BEARER)], 401),
}


@pytest.fixture
def edge(start: Start) -> RunningEdge:
    return start()


@pytest.mark.parametrize("name", KEYS)
def test_a_key_has_one_reading(edge: RunningEdge, engine: ScriptedEngine, name: str) -> None:
    headers, status = KEYS[name]
    connection = edge.connect()
    connection.putrequest("GET", "/v1/models")
    for header, value in headers:
        connection.putheader(header, value)
    connection.endheaders()
    assert connection.getresponse().status == status
    connection.close()
    assert len(engine.heads) == (status == 200)
    assert all(word not in head.lower() for head in engine.heads for word in ("x-api-key", "authorization", KEY))


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}?beta=true", f"{COUNT_TOKENS}?beta=true"])
def test_the_paths_reach_the_engine_as_they_are(edge: RunningEdge, engine: ScriptedEngine, path: str) -> None:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    # The scripted engine does not have them.
    assert edge.ask("POST", path, QUESTION, None, headers).body == b"{}"
    (head,) = engine.heads
    assert head.startswith(f"POST {path} HTTP/1.1\r\n")
    assert f"who=ada model=model path={path.partition('?')[0]} status=404" in edge.logged()


def without_engine(edge: RunningEdge) -> object:
    return edge.admin_route("disable server demo/engine")


# What happens before a request. Its result is kept until the answer.
Before = Callable[[RunningEdge], object]
# Error -> what happens before, the request, the status, Anthropic's type, and OpenAI's on a path of its API.
ERRORS: Mapping[str, tuple[Before, Mapping[str, object], int, str, str]] = {
    "no key": (id, {"key": None}, 401, "authentication_error", "authentication_error"),
    "method": (id, {"method": "PUT"}, 404, "not_found_error", "invalid_request_error"),
    "no body": (id, {"body": None}, 400, "invalid_request_error", "invalid_request_error"),
    "large": (id, {"body": None, "headers": LARGE}, 413, "request_too_large", "invalid_request_error"),
    "streams": (open_stream, {}, 429, "rate_limit_error", "rate_limit_error"),
    "inactive": (id, {"body": {**QUESTION, "model": "o/1"}}, 503, "api_error", "service_unavailable_error"),
    "no engine": (without_engine, {}, 503, "api_error", "service_unavailable_error"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_the_names_of_the_api_that_is_asked(start: Start, engine: ScriptedEngine, name: str) -> None:
    before, request, status, anthropic, openai = ERRORS[name]
    engine.turns = threading.Semaphore(0)
    edge = start(limits={"body_mib": 1, "streams": 1 if before is open_stream else 8})
    kept = before(edge)
    for path, kind in ((f"{MESSAGES}?beta=true", anthropic), (COUNT_TOKENS, anthropic), (CHAT, openai)):
        answer = edge.ask(**{"method": "POST", "path": path, "body": QUESTION, **request})
        assert (answer.status, answer.error["type"]) == (status, kind)
        assert json.loads(answer.body)["type"] == "error"
        assert answer.error["message"]
        assert ("retry-after" in answer.headers) == (status == 429)
    engine.turns.release(len(EVENTS))
    del kept


def test_haproxys_own_errors_have_them_too(edge: RunningEdge, engine: ScriptedEngine) -> None:
    """A socket that is gone before the next check of the second stage: HAProxy itself answers."""
    (Path(edge.files.sockets) / "demo" / "api.sock").unlink()
    edge.admin_route("set server demo/engine health up")
    edge.admin_route("disable health demo/engine")
    edge.admin_route("set server demo/engine state ready")
    answers = {path: edge.ask("POST", path, QUESTION) for path in (MESSAGES, CHAT)}
    assert {path: (one.status, one.error["type"]) for path, one in answers.items()} == {
        MESSAGES: (503, "api_error"),
        CHAT: (503, "service_unavailable_error"),
    }


@pytest.mark.parametrize(
    ("version", "lacks"),
    [("0.11.0", {MESSAGES, COUNT_TOKENS}), ("0.16.0rc1", {COUNT_TOKENS}), ("0.17.0", set()), ("0.33.0", set())],
)
def test_an_engine_without_the_path_is_named_with_the_version_that_has_it(
    tmp_path: Path, engine: ScriptedEngine, version: str, lacks: set[str]
) -> None:
    planned = edge_cases.edge_of([edge_cases.DEMO], {"open": False})
    old = replace(planned, backends=tuple(replace(one, engine=version) for one in planned.backends))
    with in_front(old, tmp_path, {"demo": engine}) as (edge, _):
        for path in engine_paths.FIRST:
            answer = edge.ask("POST", f"{path}?beta=true", QUESTION)
            if path in lacks:
                assert (answer.status, answer.error["type"]) == (404, "not_found_error")
                first = engine_paths.FIRST[path]
                assert (
                    answer.error["message"] == f"The model runs on vLLM {version}. {path} needs vLLM {first} or later."
                )
        assert {head.split()[1].partition("?")[0] for head in engine.heads} == {*engine_paths.FIRST} - lacks
        assert edge.ask("GET", "/v1/models").status == 200
