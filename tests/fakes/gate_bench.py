"""A deployment with every gate switched on, the mock server behind it, and the faults of the mock server by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_requests

from fakes.faulty_replies import BOTH_FORMS, WHOLE_ONLY
from fakes.faulty_server import Fault, MockServer, Reply, serving
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.engine_api import CHAT
from vllm_spark.verify import registry, runner
from vllm_spark.verify.gate import no_requests
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.verdict import Verdict

# Every optional gate of chats with its smallest options: the fields that its schema requires, at their maximum.
ALL = {
    "ready": {"deadline_s": 600},
    **{
        gate.name: {name: gate.schema["properties"][name]["maximum"] for name in gate.schema.get("required", ())}
        for gate in registry.OPTIONAL
        if gate.schema and CHAT in gate.roles
    },
}
# The gates that judge responses, in their order; log and fabric judge the log.
ORDER = [gate.name for gate in registry.GATES if gate.requests is not no_requests and CHAT in gate.roles]


@dataclass(frozen=True)
class Bench:
    """A deployment whose recipe switches every gate on, and the mock that serves it."""

    request: GateRequest
    log: list[str]
    mock: MockServer

    def probe(self, responses: Mapping[str, Any]) -> dict[str, Any]:
        labels = {"vllm-spark.launch": self.request.launch}
        return {"container": {"image": self.request.image, "labels": labels}, "responses": responses}

    def judge(self, responses: Mapping[str, Any]) -> list[Verdict]:
        return runner.judge(self.request, self.probe(responses), self.log)

    def server(self, fault: Fault | None = None, seed: int = 0) -> MockServer:
        return dataclasses.replace(self.mock, fault=fault, seed=seed, served=0)


def bench_of(spec: Spec, through: str = "", **changed: Any) -> Bench:
    switched = dataclasses.replace(spec, recipe={**spec.recipe, "gates": {**ALL, **changed}})
    request = runner.gate_request(switched, launch.fingerprint(spec))
    # Without `bind` the gate reach is not judged: the mock has no address for clients.
    through_router = {"url": through} if through else {}
    request = dataclasses.replace(request, through=through_router, bind="", api_key=True)
    mock = MockServer(request.served_name, request.model_root, request.engine_version, request.max_model_len)
    return Bench(request, [f"vllm-spark: launch {request.launch}"], mock)


def parsed(request: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """Return the response that vllm_probe reads from these bytes."""
    streamed = (request.get("body") or {}).get("stream") and reply.status == 200
    raw = b"".join(reply.pieces)
    content = spark_requests.parse_stream(raw) if streamed else spark_requests.parse_body(raw, request.get("prefix"))
    return {"status": reply.status, **content, "seconds": 0.1}


def responses_of(bench: Bench, engine: MockServer, router: Callable[..., Reply] | None = None) -> dict[str, Any]:
    """Return every response of the engine, and of the router to the requests that it gets."""
    replies = {}
    for request in runner.requests(bench.request):
        answer = router if request.get("base") and router else engine.answer
        replies[request["id"]] = parsed(request, answer(request["path"], request.get("body") or {}))
    return replies


def over_http(bench: Bench, answer: Callable[..., Reply]) -> dict[str, Any]:
    with serving(answer) as server:
        return spark_requests.send_all(server, runner.requests(bench.request), "")


def failed(verdicts: list[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict.ok is False]


def in_form(fault: Fault, streamed: bool) -> Fault:
    return dataclasses.replace(
        fault, applies=lambda path, body: bool(body.get("stream")) is streamed and fault.applies(path, body)
    )


FAULTS = {
    **WHOLE_ONLY,
    **{f"{name}, whole": in_form(fault, streamed=False) for name, fault in BOTH_FORMS.items()},
    **{f"{name}, streamed": in_form(fault, streamed=True) for name, fault in BOTH_FORMS.items()},
}


def other_tokens(text: str) -> int:
    return len(text) // 4 + 2
