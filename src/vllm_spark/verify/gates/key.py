"""Gate: a server with VLLM_API_KEY refuses requests without it.

vLLM checks the key below /v1 only. Other paths, /invocations among them, answer a chat without a key (seen with 0.32.0;
server_utils.py of 0.20.2). This is reported and does not fail: only a proxy can close these paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus

from vllm_spark.node.engine_api import PROOFS
from vllm_spark.verify import requests
from vllm_spark.verify.gate import ROLES, Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, HttpResponse, Probe
from vllm_spark.verify.responses import status
from vllm_spark.verify.verdict import Verdict, failure

NAME = "key"
RUNBOOK = "unguarded-api"
INVOCATIONS = "/invocations"
# The field `user` of the requests, so that a log shows who sent a request without a key.
ANONYMOUS = "vllm-spark-without-key"

REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
ABSENT = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one token's request to /v1 and one to /invocations, both without the key; nothing for a server without."""
    if request.api_key:
        proof = requests.proof("key-v1", request.served_name, requests.QUEUE_S, request.role)
        asked: HttpRequest = {**proof, "body": {**proof["body"], "user": ANONYMOUS}, "anonymous": True}
        yield asked
        yield {**asked, "id": "key-invocations", "path": INVOCATIONS}


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield a verdict on /v1, and one on /invocations, which is a report and never fails."""
    if not request.api_key:
        return
    guarded, open_ = (probe["responses"].get(id_, HttpResponse()) for id_ in ("key-v1", "key-invocations"))
    if guarded.get("status") not in REFUSED:
        yield failure(
            NAME, "v1", f"{PROOFS[request.role].path} without a key got {status(guarded)}", "status 401",
            "see that /etc/vllm-spark/NAME/env has VLLM_API_KEY and which server has the port, then deploy again.",
            runbook=RUNBOOK,
        )  # fmt: skip
        return
    yield Verdict(NAME, "v1", True, f"without a key: status {guarded['status']}")
    if open_.get("status") in REFUSED | ABSENT:
        yield Verdict(NAME, "invocations", True, f"without a key: status {open_['status']}")
    else:
        advice = f"VLLM_API_KEY does not guard it: set vllm_edge: {{open: false}}; see docs/runbooks/{RUNBOOK}.md"
        yield Verdict(NAME, "invocations", None, f"POST {INVOCATIONS} without a key got {status(open_)}; {advice}")


GATE = Gate(
    name=NAME,
    proves="a server with a key refuses /v1 without it; what /invocations answers is reported",
    order=45,
    optional=False,
    cheap=True,
    condition="where vllm_secrets has VLLM_API_KEY",
    schema=None,
    roles=ROLES,
    requests=build_requests,
    judge=judge,
)
