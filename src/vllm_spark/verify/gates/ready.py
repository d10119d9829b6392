"""Gate: the engine generates a token, or what proves another role: a vector, a score.

A 200 of /health is not enough, because it does not ask the workers (vLLM v1/engine/async_llm.py, check_health).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http import HTTPStatus

from vllm_spark.core.refusal import Fix
from vllm_spark.node.engine_api import PROOFS
from vllm_spark.node.host_layout import LAUNCH_LABEL
from vllm_spark.verify import requests
from vllm_spark.verify.gate import ROLES, Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, HttpResponse, Probe
from vllm_spark.verify.responses import MalformedError, dig, ranking, read, status, vectors
from vllm_spark.verify.verdict import Verdict, failure

NAME = "ready"

# Statuses that a serving API gives again to the same request, so that more time does not help.
DEFINITE = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
KEY_FIX = (
    "set the server's key as vllm_secrets.VLLM_API_KEY, and remove api-key from args and VLLM_API_KEY from env; "
    "then deploy."
)


def is_ready(probe: Probe) -> bool:
    """Return True if the engine generated a token, or on a worker, which receives no request: if its head serves."""
    if not probe["responses"]:
        running = (probe.get("container") or {}).get("state") == "running"
        return running and probe.get("state", {}).get("state") == "serving"
    return not _fault(probe["responses"].get("ready", {}))


def _fault(response: HttpResponse) -> str:
    """Return why a response is no token, vector or score; empty if it is one. Its request was that of the role."""
    try:
        if dig(response, "json", "data") is not None:
            vectors(response)
        elif dig(response, "json", "results") is not None:
            ranking(response)
        else:
            return read(response).fault
    except MalformedError as error:
        return str(error)
    return ""


def is_definite(probe: Probe) -> bool:
    """Return True if the API serves and refuses the request for a token, so that a wait ends without one."""
    return probe["responses"].get(NAME, {}).get("status") in DEFINITE


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield the request of the role, of a chat one token."""
    yield requests.proof("ready", request.served_name, requests.SHORT_TIMEOUT_S, request.role)


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict on the token."""
    response, word = probe["responses"].get("ready", {}), PROOFS[request.role].word
    if is_ready(probe):
        yield Verdict(NAME, word, True, f"one {word} in {response['seconds']:.2f} s")
    else:
        yield failure(
            NAME, word, f"no {word} from {request.served_name}: {_fault(response) or status(response)}",
            f"one {word}", _fix(request, response), runbook="engine-failed-to-start",
        )  # fmt: skip


def _fix(request: GateRequest, response: HttpResponse) -> str | Fix:
    if response.get("status") in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return KEY_FIX
    return Fix(f"journalctl -u {request.unit} -e", "On the Spark.")


def judge_worker(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield the verdicts on a worker: its container is the recipe's and runs, and its head serves."""
    container, state = probe.get("container") or {}, probe.get("state", {})
    checks = (
        ("state", state.get("state"), "serving"),
        ("container", container.get("state"), "running"),
        ("image", container.get("image"), request.image),
        ("launch", container.get("labels", {}).get(LAUNCH_LABEL), request.launch),
    )
    wrong = [(name, observed, expected) for name, observed, expected in checks if observed != expected]
    for name, observed, expected in wrong:
        why = f" ({state['why']})" if name == "state" and state.get("why") else ""
        yield failure(
            NAME, f"rank-{name}", f"{name} of rank {request.rank} is {observed}{why}", expected,
            Fix(f"journalctl -u {request.unit} -e", "On both Sparks."), runbook="pair-does-not-start",
        )  # fmt: skip
    if not wrong:
        yield Verdict(NAME, "rank", True, f"rank {request.rank} runs and its head serves")


GATE = Gate(
    name=NAME,
    proves="the engine generates a token, or by its role a vector or a score; on a worker: its container runs and its "
    "head serves",
    order=10,
    optional=False,
    cheap=True,
    schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["deadline_s"],
        "properties": {
            "deadline_s": {
                "type": "integer",
                "minimum": 30,
                "maximum": 7200,
                "description": "From the start of the unit to the first token, vector or score. Above 600 s the "
                "engine's own limit is raised with it.",
            }
        },
    },
    roles=ROLES,
    requests=build_requests,
    judge=judge,
    judge_worker=judge_worker,
)
