"""What a client reads when an engine dies: that the model loads, and when to ask again. Never what the engine says of
itself, and no command."""

from __future__ import annotations

import json

import pytest

from conftest import EVENTS, Start
from fakes import edge_cases
from fakes.running_edge import RunningEdge, in_front
from fakes.scripted_engine import ScriptedEngine, Stream
from vllm_spark.edge import answers

CHAT = "/v1/chat/completions"
QUESTION = {"model": "model", "messages": []}
# As vLLM 0.32 answers (entrypoints/serve/exception_handling, v1/engine/exceptions.py).
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
BODY = json.dumps({"error": {"message": DEAD, "type": "InternalServerError", "param": None, "code": 500}})


def loads(edge: RunningEdge) -> None:
    answer = edge.ask("POST", CHAT, QUESTION)
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "model_loading", "10")
    assert not any(word in answer.error["message"] for word in ("stack trace", "switch.yml"))
    assert not any("vllm-edge" in name for name in answer.headers)


@pytest.mark.parametrize(
    "stream", [Stream(status=500, body=BODY), Stream(ending="closed")], ids=["it says so", "it cuts the request"]
)
@pytest.mark.parametrize("settings", [{}, {"fair": True}], ids=["one class", "two classes"])
def test_an_engine_that_dies_under_a_request_loads_again(
    stream: Stream, settings: dict[str, bool], start: Start, engine: ScriptedEngine
) -> None:
    assert answers.DEAD in DEAD
    edge = start(**settings)
    engine.streams = [stream]
    loads(edge)
    engine.streams = [Stream(EVENTS[:1])]
    assert edge.ask("POST", CHAT, QUESTION).status == 200


def test_another_fault_of_an_engine_is_its_own(start: Start, engine: ScriptedEngine) -> None:
    edge = start()
    body = json.dumps({"error": {"message": "list index out of range", "code": 500}})
    engine.streams = [Stream(status=500, body=body)]
    answer = edge.ask("POST", CHAT, QUESTION)
    assert (answer.status, answer.body.decode()) == (500, body)


def test_the_first_request_after_the_end_of_an_engine_reads_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("e")
    planned = edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], {"open": False})
    with in_front(planned, folder, {"demo": ScriptedEngine([Stream(EVENTS[:1])])}) as (edge, engines):
        engines.stop("demo")
        loads(edge)
        # Its check would need two seconds to see that.
        edge.wait_for("demo", "DOWN")
