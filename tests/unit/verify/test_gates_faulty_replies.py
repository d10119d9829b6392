"""Each gate against a mock server with one fault, and all gates against a healthy one.

The responses go through the parser of the probe. tests/integration/test_gates_over_http.py sends them over HTTP.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.faulty_replies import fields
from fakes.faulty_server import MockServer, Reply, refusal
from fakes.gate_bench import FAULTS, ORDER, Bench, bench_of, failed, other_tokens, parsed, responses_of
from vllm_spark.core import paths
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import runner
from vllm_spark.verify.gates import probe as probe_gate
from vllm_spark.verify.gates.failover import TEXTS


@pytest.fixture
def bench(resolve: Callable[..., Spec]) -> Bench:
    return bench_of(resolve())


def test_a_healthy_server_passes_every_gate_in_order(bench: Bench) -> None:
    verdicts = bench.judge(responses_of(bench, bench.server()))
    assert list(dict.fromkeys(verdict.gate for verdict in verdicts)) == ORDER
    assert [verdict for verdict in verdicts if verdict.ok is not True] == []


@pytest.mark.parametrize("name", FAULTS)
def test_its_gate_catches_a_fault(name: str, bench: Bench) -> None:
    fault = FAULTS[name]
    verdicts = bench.judge(responses_of(bench, bench.server(fault, seed=11)))
    failures = failed(verdicts)
    assert {verdict.gate for verdict in failures} == {fault.gate}, verdicts[-3:]
    assert verdicts[-1].gate == fault.gate, "a gate after the first miss was judged"
    assert all(verdict.expected and verdict.fix for verdict in failures)
    assert all((paths.RUNBOOKS / f"{verdict.runbook}.md").is_file() for verdict in failures)
    if ", streamed" in name:
        assert all("stream" in verdict.id for verdict in failures)


@pytest.mark.parametrize("gate", ORDER)
def test_every_gate_has_a_faulty_reply(gate: str) -> None:
    assert any(fault.gate == gate for fault in FAULTS.values())


# Routers: name -> the router, changes to the other server, the id of the verdict that must fail (None for a sound one).


def forwards(engine: MockServer, other: MockServer) -> Callable[..., Reply]:
    del other
    return engine.answer


def falls_back(engine: MockServer, other: MockServer) -> Callable[..., Reply]:
    del engine
    return other.answer


def takes_turns(engine: MockServer, other: MockServer) -> Callable[..., Reply]:
    turns = iter(range(1 << 20))

    def answer(path: str, body: Mapping[str, Any]) -> Reply:
        return (engine if next(turns) < len(TEXTS) else other).answer(path, body)

    return answer


def knows_every_model(engine: MockServer, other: MockServer) -> Callable[..., Reply]:
    return lambda path, body: (engine if body.get("model") == engine.name else other).answer(path, body)


def refuses_as_litellm(engine: MockServer, other: MockServer) -> Callable[..., Reply]:
    del other
    known = engine.answer
    return lambda path, body: (
        known(path, body) if body["model"] == engine.name else refusal(400, "Invalid model name passed in")
    )


ROUTERS = {
    "forwards": (forwards, {}, None),
    "refuses as LiteLLM does": (refuses_as_litellm, {}, None),
    "falls back": (falls_back, {"name": "qwen", "knows_every_name": True}, "router-model"),
    "falls back under the name": (falls_back, {"tokens_per_text": other_tokens}, "router-tokenizer"),
    "takes turns": (takes_turns, {"tokens_per_text": other_tokens}, "router-tokenizer"),
    "falls back to a twin": (falls_back, {}, "router-counter"),
    "knows every model": (knows_every_model, {"knows_every_name": True}, "router-unknown-model"),
    "answers for all": (lambda engine, other: lambda path, body: refusal(502, "bad gateway"), {}, "router-model"),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_with_a_fallback_fails(name: str, resolve: Callable[..., Spec]) -> None:
    routed, change, expected = ROUTERS[name]
    bench = bench_of(resolve(), through="http://router.invalid:4000")
    engine = bench.server()
    other = dataclasses.replace(bench.server(seed=5), **change)
    verdicts = bench.judge(responses_of(bench, engine, routed(engine, other)))
    assert [verdict.id for verdict in failed(verdicts)] == ([expected] if expected else [])
    assert not any("\n" in verdict.line() for verdict in failed(verdicts))


NO_PARSER = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


@pytest.mark.parametrize(("fallback", "router"), [("qwen", False), ("twin", False), ("", True)])
def test_a_router_that_hides_a_refused_tool_choice_fails(
    fallback: str, router: bool, resolve: Callable[..., Spec]
) -> None:
    """Field report 004: the engine has no tool parser, and the router sends the requests with tools elsewhere."""
    bench = bench_of(resolve(), through="http://router.invalid:4000")
    engine = bench.server()
    name = {"name": "qwen", "knows_every_name": True} if fallback == "qwen" else {}
    other = dataclasses.replace(bench.server(seed=5), **name)

    def without_tools(path: str, body: Mapping[str, Any]) -> Reply:
        return refusal(400, NO_PARSER) if "tools" in body else engine.answer(path, body)

    def through(path: str, body: Mapping[str, Any]) -> Reply:
        return other.answer(path, body) if fallback and "tools" in body else without_tools(path, body)

    replies = responses_of(bench, SimpleNamespace(answer=without_tools), through)  # type: ignore[arg-type]
    verdicts = {verdict.id: verdict for verdict in bench.judge(replies) if verdict.gate == "failover"}
    assert verdicts["engine-tools"].ok is None
    assert NO_PARSER.split()[-4] in verdicts["engine-tools"].observed
    assert [verdict.ok for verdict in verdicts.values()][2:] == [None, True, True, router]
    if fallback:
        assert f"from model '{other.name}'" in verdicts["router-tools"].observed


def test_a_router_that_sends_tools_to_a_twin_fails(resolve: Callable[..., Spec]) -> None:
    bench = bench_of(resolve(), through="http://router.invalid:4000")
    engine, twin = bench.server(), bench.server(seed=5)
    replies = responses_of(bench, engine, lambda path, body: (twin if "tools" in body else engine).answer(path, body))
    assert [verdict.id for verdict in failed(bench.judge(replies))] == ["router-tools"]


def test_a_stored_fingerprint_of_another_model_fails(resolve: Callable[..., Spec]) -> None:
    healthy = bench_of(resolve())
    engine = healthy.server()
    stored = [engine.tokens_per_text(text) for text in TEXTS]
    for tokens, ids in ((stored, []), ([9, 9, 9, 9, 9], ["engine-tokenizer"])):
        bench = bench_of(resolve(), failover={"tokens": tokens})
        assert [verdict.id for verdict in failed(bench.judge(responses_of(bench, bench.server())))] == ids


# Values of the counter before, between and after the turns of five -> the expected verdict.
READS = (
    ((0, 5, 10, 15), True),
    ((0, 6, 11, 17), True),
    ((0, 6, 12, 18), None),
    ((0, 4, 10, 15), None),
    ((0, 5, 10, 14), False),
    ((0, 5, 5, 20), False),
    ((0, 4, 9, 14), False),
    ((9, 5, 25, 30), False),
)


def test_other_clients_are_not_a_failover(bench: Bench) -> None:
    """A request of another client spoils the count of its turn. If all turns are spoiled, the verdict is None."""
    replies = responses_of(bench, bench.server())
    for reads, ok in READS:
        for turn, value in enumerate(reads):
            text = f'vllm:request_success_total{{model_name="{bench.mock.name}"}} {value}.0'
            replies[f"failover-counter-{turn}"]["text"] = text
        failures = [verdict for verdict in bench.judge(replies) if verdict.id == "engine-counter"]
        assert [verdict.ok for verdict in failures] == [ok], reads


@pytest.mark.parametrize(("needed", "ok"), [(7, False), (6, True)])
def test_the_probe_counts_right_answers(needed: int, ok: bool, resolve: Callable[..., Spec]) -> None:
    bench = bench_of(resolve(), probe={"needed": needed})
    replies = responses_of(bench, bench.server())
    replies["probe-3"]["json"]["choices"][0]["message"]["content"] = "Answer: Ben"
    scores = [verdict for verdict in bench.judge(replies) if verdict.gate == "probe"]
    assert [(verdict.ok, verdict.observed[:12]) for verdict in scores] == [(ok, "6 of 7 right")]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 5 cents", "5"),
        ("**Answer:** $155$", "155"),
        ("The form is Answer: X.\nAnswer: Friday.", "friday"),
        ("`Answer:` **Carl**", "carl"),
        ("It is 9.", ""),
        ("Answer:", ""),
        ("Answer: 15.5", "15.5"),
    ],
)
def test_an_answer_line_is_graded(text: str, answer: str) -> None:
    assert probe_gate.final_answer(text) == answer


def test_a_recipe_without_optional_gates_sends_six_requests(resolve: Callable[..., Spec]) -> None:
    spec = resolve()
    gate_request = runner.gate_request(spec, launch.fingerprint(spec))
    assert [request["id"] for request in runner.requests(gate_request)] == [
        "ready", "models", "version", "unknown-model", "answer-0", "answer-1",
    ]  # fmt: skip


@pytest.mark.parametrize(("status", "ok"), [(200, None), (500, None), (401, True), (404, True)])
def test_what_invocations_answers_without_a_key_is_reported(status: int, ok: bool | None, bench: Bench) -> None:
    replies = responses_of(bench, bench.server())
    replies["key-invocations"] = {"status": status, "json": {"choices": [{"text": "2"}]}, "text": "", "seconds": 0.1}
    verdict = next(one for one in bench.judge(replies) if (one.gate, one.id) == ("key", "invocations"))
    assert verdict.ok is ok
    assert f"without a key{'' if ok is None else ':'} " in verdict.observed
    assert ("set vllm_edge: {open: false}" in verdict.observed) is (ok is None)


def test_a_server_without_a_key_is_not_asked_for_one(bench: Bench) -> None:
    request = dataclasses.replace(bench.request, api_key=False)
    assert not [one for one in runner.requests(request) if one["id"].startswith("key-")]


# Bytes that are not a valid response, whole or as a stream.
INVALID_BYTES = {
    "nothing": b"",
    "bytes": bytes(range(256)) * 8,
    "html": b"<html><body>502 Bad Gateway</body></html>",
    "null": b"null",
    "a number": b"17",
    "a list": b"[[[]]]",
    "an empty object": b"{}",
    "deep": b"[" * 100_000,
    "deep and closed": b'{"choices":' * 500 + b"1" + b"}" * 500,
    "huge number": b'{"choices": [{"message": {"content": ' + b"9" * 6000 + b"}}]}",
    "1e999": b'{"choices": [{"message": {"content": "x"}, "token_ids": [1e999]}], "usage": {"prompt_tokens": 1e999}}',
    "half a surrogate": b'{"choices": [{"message": {"content": "\\ud800"}}]}',
    "cut JSON": b'{"choices": [{"message": {"content": "abc',
    "cut event": b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: {"choi',
    "no DONE": b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n',
    "DONE alone": b"data: [DONE]\n\n",
    "an error in the stream": b'data: {"error": {"message": "EngineCore died"}}\n\ndata: [DONE]\n\n',
    "comments for ever": b": ping\n\n" * 10_000,
    "events of other types": b'data: 1\n\ndata: []\n\ndata: {"choices": {"0": 1}}\n\ndata: [DONE]\n\n',
    "a call without index": b'data: {"choices": [{"delta": {"tool_calls": [{"id": 1}]}}]}\n\ndata: [DONE]\n\n',
    "wrong types": b'{"choices": [{"message": {"content": 1, "tool_calls": {"a": 1}, "reasoning": []}}]}',
    "null parts": b'{"choices": [{"message": null, "delta": null, "text": null}], "usage": null, "data": [null]}',
}


# Requests whose text is not judged: an unknown model is judged by its status alone, and any text is a token.
TEXT_NOT_JUDGED = {"unknown-model", "failover-unknown", "ready", "key-invocations"}


@pytest.mark.slow
@pytest.mark.parametrize("name", INVALID_BYTES)
def test_invalid_bytes_fail_each_gate_with_a_reason(name: str, bench: Bench) -> None:
    healthy = responses_of(bench, bench.server())
    for request in runner.requests(bench.request):
        for status in (200, 500):
            replies = {**healthy, request["id"]: parsed(request, Reply(status, [INVALID_BYTES[name]]))}
            verdicts = bench.judge(replies)
            failures = failed(verdicts)
            assert failures or request["id"] in TEXT_NOT_JUDGED, request["id"]
            assert all(verdict.observed for verdict in failures)
            json.dumps([verdict.to_json() for verdict in verdicts]).encode()
            "\n".join(verdict.line() for verdict in verdicts).encode()


@pytest.mark.parametrize("text", ["\ud800", "\x1b[2J", "a\nb"], ids=["surrogate", "escape", "line break"])
def test_a_verdict_has_no_control_characters(text: str, bench: Bench) -> None:
    fault = dataclasses.replace(FAULTS["no choice, whole"], change=fields(content=text))
    verdict = failed(bench.judge(responses_of(bench, bench.server(fault))))[0]
    assert verdict.line().isprintable()
    replies = responses_of(bench, bench.server())
    replies["answer-0"]["json"]["choices"][0]["message"]["content"] = f"Paris {text} Paris"
    card = replies["models"]["json"]["data"][0]
    replies["version"]["json"]["version"] += text
    assert all(verdict.line().isprintable() for verdict in bench.judge(replies))
    for error in ({"error": f"BadStatusLine: {text}"}, {"status": 400, "json": {"message": text}}):
        assert all(verdict.line().isprintable() for verdict in bench.judge({**replies, "ready": error}))
    card["root"] = text
    assert all(verdict.line().isprintable() for verdict in bench.judge(replies))


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value in a JSON document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


STRANGE = [None, True, False, 0, -1, 1.5, "", "NaN", "x" * 5000, [], {}, [None], [[1]], {"a": {"b": []}}, 10**400]


def with_one_strange_value(document: Any, rng: Random) -> Any:
    document = copy.deepcopy(document)
    # The probe itself guarantees that `events` is a list.
    place = rng.choice([place for place in places(document) if place not in ((), ("events",))])
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = rng.choice(STRANGE)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_value_of_any_type_anywhere_never_crashes_a_gate(seed: int, bench: Bench) -> None:
    rng = Random(seed)  # noqa: S311  a test's dice
    healthy = responses_of(bench, bench.server(seed=seed))
    for name, reply in healthy.items():
        for _ in range(5):
            strange = with_one_strange_value(
                {key: reply[key] for key in ("json", "events") if reply.get(key)} or {"json": 1}, rng
            )
            verdicts = bench.judge({**healthy, name: {**reply, **strange}})
            assert all(verdict.observed for verdict in verdicts if verdict.ok is False), name


@pytest.mark.parametrize("prefix", ["", "garbage", "tools-single", "vision-text", "probe-3"])
def test_a_missing_response_is_not_a_pass(prefix: str, bench: Bench) -> None:
    replies = responses_of(bench, bench.server())
    for name in [name for name in replies if name.startswith(prefix or "models")]:
        del replies[name]
    assert failed(bench.judge(replies))
