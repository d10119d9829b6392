"""Each gate against a mock server that lies in one way, and all gates against one that does not.

The mock answers in the process, through the probe's own reading of the bytes, where a thousand runs over HTTP would be
slow, and over HTTP in some dozens of runs.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from ansible.module_utils import spark_requests
from gate_lies import BOTH_WAYS, WHOLE
from lying_server import Lie, Mock, Reply, refusal, serving

from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import gates
from vllm_spark.verify.gates import reasoning_probe
from vllm_spark.verify.gates.failover import TEXTS

ALL = {
    "ready": {"deadline_s": 600},
    "failover": {},
    "garbage": {},
    "structured": {},
    "tools": {},
    "vision": {},
    "reasoning": {},
    "probe": {"needed": 7},
}
ORDER = ["ready", "identity", "failover", "answer", "garbage", "structured", "tools", "vision", "reasoning", "probe"]
HEALTHY_RUNS, HEALTHY_RUNS_OVER_HTTP = 1000, 24


@dataclass(frozen=True)
class Bench:
    """A deployment whose recipe switches every gate on, and the mock that serves it."""

    wanted: dict[str, Any]
    log: list[str]
    mock: Mock

    def probe(self, responses: Mapping[str, Any]) -> dict[str, Any]:
        labels = {"vllm-spark.launch": self.wanted["launch"]}
        return {"container": {"image": self.wanted["image"], "labels": labels}, "responses": responses}

    def judge(self, responses: Mapping[str, Any]) -> list[gates.Verdict]:
        return gates.judge(self.wanted, self.probe(responses), self.log)

    def told(self, lie: Lie | None = None, seed: int = 0) -> Mock:
        return dataclasses.replace(self.mock, lie=lie, seed=seed, served=0)


def bench_of(spec: Spec, through: str = "", **changed: Any) -> Bench:
    switched = dataclasses.replace(spec, recipe={**spec.recipe, "gates": {**ALL, **changed}})
    wanted = gates.request(switched, launch.fingerprint(spec)) | {"through": {"url": through} if through else {}}
    mock = Mock(wanted["served_name"], wanted["model_root"], wanted["engine_version"], wanted["max_model_len"])
    return Bench(wanted, [f"vllm-spark: launch {wanted['launch']}"], mock)


@pytest.fixture
def bench(resolve: Callable[..., Spec]) -> Bench:
    return bench_of(resolve())


def understood(request: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """What vllm_probe makes of these bytes."""
    streamed = (request.get("body") or {}).get("stream") and reply.status == 200
    raw = b"".join(reply.pieces)
    content = spark_requests.parse_stream(raw) if streamed else spark_requests.parse_body(raw, request.get("prefix"))
    return {"status": reply.status, **content, "seconds": 0.1}


def asked(bench: Bench, engine: Mock, router: Callable[..., Reply] | None = None) -> dict[str, Any]:
    """Every reply of the engine, and of the router to what goes there."""
    replies = {}
    for request in gates.requests(bench.wanted):
        answer = router if request.get("base") and router else engine.answer
        replies[request["id"]] = understood(request, answer(request["path"], request.get("body") or {}))
    return replies


def over_http(bench: Bench, answer: Callable[..., Reply]) -> dict[str, Any]:
    with serving(answer) as server:
        return spark_requests.send_all(server, gates.requests(bench.wanted), "")


def missed(verdicts: list[gates.Verdict]) -> list[gates.Verdict]:
    return [verdict for verdict in verdicts if verdict.ok is False]


def test_a_healthy_server_holds_every_gate_in_order(bench: Bench) -> None:
    verdicts = bench.judge(asked(bench, bench.told()))
    assert list(dict.fromkeys(verdict.gate for verdict in verdicts)) == ORDER
    assert [verdict for verdict in verdicts if verdict.ok is not True] == []


def test_a_thousand_healthy_runs_raise_no_alarm(bench: Bench) -> None:
    for seed in range(HEALTHY_RUNS):
        verdicts = bench.judge(asked(bench, bench.told(seed=seed)))
        alarms = [verdict for verdict in verdicts if verdict.ok is not True]
        assert not alarms, (seed, alarms)


def test_healthy_runs_over_http_raise_no_alarm(bench: Bench) -> None:
    for seed in range(HEALTHY_RUNS_OVER_HTTP):
        verdicts = bench.judge(over_http(bench, bench.told(seed=seed).answer))
        assert verdicts[-1].gate == "probe", (seed, verdicts[-1])
        assert not missed(verdicts), (seed, missed(verdicts))


def one_way(lie: Lie, streamed: bool) -> Lie:
    return dataclasses.replace(lie, of=lambda path, body: bool(body.get("stream")) is streamed and lie.of(path, body))


LIES = {
    **WHOLE,
    **{f"{name}, whole": one_way(lie, streamed=False) for name, lie in BOTH_WAYS.items()},
    **{f"{name}, streamed": one_way(lie, streamed=True) for name, lie in BOTH_WAYS.items()},
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_caught_by_its_gate(name: str, bench: Bench) -> None:
    lie = LIES[name]
    verdicts = bench.judge(asked(bench, bench.told(lie, seed=11)))
    found = missed(verdicts)
    assert {verdict.gate for verdict in found} == {lie.gate}, verdicts[-3:]
    assert verdicts[-1].gate == lie.gate, "a gate after the first miss was judged"
    assert all(verdict.expected and verdict.fix and verdict.runbook for verdict in found)
    if ", streamed" in name:
        assert all("stream" in verdict.id for verdict in found)


@pytest.mark.parametrize("gate", ORDER)
def test_every_gate_has_a_lie(gate: str) -> None:
    assert any(lie.gate == gate for lie in LIES.values())


@pytest.mark.parametrize("name", [next(name for name, lie in LIES.items() if lie.gate == gate) for gate in ORDER])
def test_a_lie_is_caught_over_http(name: str, bench: Bench) -> None:
    verdicts = bench.judge(over_http(bench, bench.told(LIES[name]).answer))
    assert {verdict.gate for verdict in missed(verdicts)} == {LIES[name].gate}


# Routers: what each does with a request -> a part of the verdict that must miss; nothing for a sound one.


def forwards(engine: Mock, other: Mock) -> Callable[..., Reply]:
    del other
    return engine.answer


def falls_over(engine: Mock, other: Mock) -> Callable[..., Reply]:
    del engine
    return other.answer


def takes_turns(engine: Mock, other: Mock) -> Callable[..., Reply]:
    turns = iter(range(1 << 20))

    def answer(path: str, body: Mapping[str, Any]) -> Reply:
        return (engine if next(turns) < len(TEXTS) else other).answer(path, body)

    return answer


def knows_every_model(engine: Mock, other: Mock) -> Callable[..., Reply]:
    return lambda path, body: (engine if body.get("model") == engine.name else other).answer(path, body)


def refuses_as_litellm(engine: Mock, other: Mock) -> Callable[..., Reply]:
    del other
    known = engine.answer
    return lambda path, body: (
        known(path, body) if body["model"] == engine.name else refusal(400, "Invalid model name passed in")
    )


def other_tokens(text: str) -> int:
    return len(text) // 4 + 2


ROUTERS = {
    "forwards": (forwards, {}, None),
    "refuses as LiteLLM does": (refuses_as_litellm, {}, None),
    "falls over": (falls_over, {"name": "qwen", "knows_every_name": True}, "router-model"),
    "falls over under the name": (falls_over, {"tokens_per_text": other_tokens}, "router-tokenizer"),
    "takes turns": (takes_turns, {"tokens_per_text": other_tokens}, "router-tokenizer"),
    "falls over to a twin": (falls_over, {}, "router-counter"),
    "knows every model": (knows_every_model, {"knows_every_name": True}, "router-unknown-model"),
    "answers for all": (lambda engine, other: lambda path, body: refusal(502, "bad gateway"), {}, "router-model"),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_a_router_that_falls_over_is_caught(name: str, resolve: Callable[..., Spec]) -> None:
    routed, change, expected = ROUTERS[name]
    bench = bench_of(resolve(), through="http://router.invalid:4000")
    engine = bench.told()
    other = dataclasses.replace(bench.told(seed=5), **change)
    verdicts = bench.judge(asked(bench, engine, routed(engine, other)))
    assert [verdict.id for verdict in missed(verdicts)] == ([expected] if expected else [])
    assert not any("\n" in verdict.line() for verdict in missed(verdicts))


def test_a_router_is_asked_over_http_without_the_engines_key(resolve: Callable[..., Spec]) -> None:
    bench = bench_of(resolve())
    engine, other = bench.told(), dataclasses.replace(bench.told(), tokens_per_text=other_tokens)
    with serving(engine.answer) as server, serving(other.answer) as (address, port):
        bench = bench_of(resolve(), through=f"http://{address}:{port}/")
        verdicts = bench.judge(spark_requests.send_all(server, gates.requests(bench.wanted), "a key"))
    assert [verdict.id for verdict in missed(verdicts)] == ["router-tokenizer"]
    _, _, headers = spark_requests.connect(
        ("127.0.0.1", 1), {"base": "http://router", "path": "/", "timeout_s": 1}, "key"
    )
    assert "Authorization" not in headers


def test_a_stored_fingerprint_is_another_models(resolve: Callable[..., Spec]) -> None:
    healthy = bench_of(resolve())
    engine = healthy.told()
    stored = [engine.tokens_per_text(text) for text in TEXTS]
    for tokens, ids in ((stored, []), ([9, 9, 9, 9, 9], ["engine-tokenizer"])):
        bench = bench_of(resolve(), failover={"tokens": tokens})
        assert [verdict.id for verdict in missed(bench.judge(asked(bench, bench.told())))] == ids


# What the counter says before, between and after the turns of five -> whether the gate holds.
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


def test_other_clients_are_no_failover(bench: Bench) -> None:
    """A foreign request spoils the count of its turn; where all are spoiled, the gate says that it cannot tell."""
    replies = asked(bench, bench.told())
    for reads, ok in READS:
        for turn, value in enumerate(reads):
            text = f'vllm:request_success_total{{model_name="{bench.mock.name}"}} {value}.0'
            replies[f"failover-counter-{turn}"]["text"] = text
        found = [verdict for verdict in bench.judge(replies) if verdict.id == "engine-counter"]
        assert [verdict.ok for verdict in found] == [ok], reads


@pytest.mark.parametrize(("needed", "ok"), [(7, False), (6, True)])
def test_the_probe_counts_right_answers(needed: int, ok: bool, resolve: Callable[..., Spec]) -> None:
    bench = bench_of(resolve(), probe={"needed": needed})
    replies = asked(bench, bench.told())
    replies["probe-3"]["json"]["choices"][0]["message"]["content"] = "Answer: Ben"
    assert [(verdict.ok, verdict.said[:12]) for verdict in bench.judge(replies)[-1:]] == [(ok, "6 of 7 right")]


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
    assert reasoning_probe.graded(text) == answer


def test_a_recipe_without_the_gates_asks_nothing_more(resolve: Callable[..., Spec]) -> None:
    spec = resolve()
    wanted = gates.request(spec, launch.fingerprint(spec))
    assert [request["id"] for request in gates.requests(wanted)] == [
        "ready", "models", "version", "unknown-model", "answer-0", "answer-1",
    ]  # fmt: skip


def test_the_probe_stops_after_a_request_without_a_reply(bench: Bench) -> None:
    def answer(path: str, body: Mapping[str, Any]) -> Reply:
        if path == "/version":
            raise ConnectionAbortedError
        return bench.mock.answer(path, body)

    replies = over_http(bench, answer)
    assert list(replies) == ["ready", "models", "version"]
    assert missed(bench.judge(replies))[0].id == "engine-version"


# Bytes that are no reply, whole or as a stream.
RUBBISH = {
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


# An unknown model is judged by its status alone, and any text is a token.
NO_TEXT_IS_JUDGED = {"unknown-model", "failover-unknown", "ready"}


@pytest.mark.parametrize("name", RUBBISH)
def test_rubbish_ends_each_gate_with_a_reason(name: str, bench: Bench) -> None:
    healthy = asked(bench, bench.told())
    for request in gates.requests(bench.wanted):
        for status in (200, 500):
            replies = {**healthy, request["id"]: understood(request, Reply(status, [RUBBISH[name]]))}
            verdicts = bench.judge(replies)
            found = missed(verdicts)
            assert found or request["id"] in NO_TEXT_IS_JUDGED, request["id"]
            assert all(verdict.said for verdict in found)
            json.dumps([verdict.to_json() for verdict in verdicts]).encode()
            "\n".join(verdict.line() for verdict in verdicts).encode()


@pytest.mark.parametrize("text", ["\ud800", "\x1b[2J", "a\nb"], ids=["surrogate", "escape", "line break"])
def test_no_verdict_carries_control_characters_of_a_reply(text: str, bench: Bench) -> None:
    lie = dataclasses.replace(LIES["no choice, whole"], message=lambda said: setattr(said, "content", text))
    verdict = missed(bench.judge(asked(bench, bench.told(lie))))[0]
    assert verdict.line().isprintable()
    replies = asked(bench, bench.told())
    replies["answer-0"]["json"]["choices"][0]["message"]["content"] = f"Paris {text} Paris"
    card = replies["models"]["json"]["data"][0]
    replies["version"]["json"]["version"] += text
    assert all(verdict.line().isprintable() for verdict in bench.judge(replies))
    for error in ({"error": f"BadStatusLine: {text}"}, {"status": 400, "json": {"message": text}}):
        assert all(verdict.line().isprintable() for verdict in bench.judge({**replies, "ready": error}))
    card["root"] = text
    assert all(verdict.line().isprintable() for verdict in bench.judge(replies))


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a JSON document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


STRANGE = [None, True, False, 0, -1, 1.5, "", "NaN", "x" * 5000, [], {}, [None], [[1]], {"a": {"b": []}}, 10**400]


def with_one_strange_value(document: Any, rng: Random) -> Any:
    document = copy.deepcopy(document)
    # That there are events, and that they are a list, is the probe's own doing.
    place = rng.choice([place for place in places(document) if place not in ((), ("events",))])
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = rng.choice(STRANGE)
    return document


@pytest.mark.parametrize("seed", range(10))
def test_a_value_of_any_type_anywhere_never_crashes_a_gate(seed: int, bench: Bench) -> None:
    rng = Random(seed)  # noqa: S311  a test's dice
    healthy = asked(bench, bench.told(seed=seed))
    for name, reply in healthy.items():
        for _ in range(5):
            strange = with_one_strange_value(
                {key: reply[key] for key in ("json", "events") if reply.get(key)} or {"json": 1}, rng
            )
            verdicts = bench.judge({**healthy, name: {**reply, **strange}})
            assert all(verdict.said for verdict in verdicts if verdict.ok is False), name


@pytest.mark.parametrize("asked_for", ["", "garbage", "tools-single", "vision-text", "probe-3"])
def test_what_was_not_asked_is_no_pass(asked_for: str, bench: Bench) -> None:
    replies = asked(bench, bench.told())
    for name in [name for name in replies if name.startswith(asked_for or "models")]:
        del replies[name]
    assert missed(bench.judge(replies))
