"""Gate: the server runs the model, the engine, the image and the launch that the recipe names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus

from vllm_spark.core.text import one_line, short_digest
from vllm_spark.node.host_layout import LAUNCH_LABEL
from vllm_spark.verify import requests
from vllm_spark.verify.gate import ROLES, Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.responses import dig
from vllm_spark.verify.verdict import Verdict, failure

NAME = "identity"


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield requests for the list of models, the version, and a model that does not exist."""
    yield requests.get("models", "/v1/models")
    yield requests.get("version", "/version")
    yield requests.proof("unknown-model", requests.UNKNOWN_MODEL, requests.SHORT_TIMEOUT_S, request.role)


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield a verdict for each property that differs, or one for all of them."""
    responses = probe["responses"]
    data = dig(responses, "models", "json", "data")
    cards = [card for card in data if isinstance(card, Mapping)] if isinstance(data, list) else []
    first = cards[0] if cards else {}
    card = next((card for card in cards if card.get("id") == request.served_name), first)
    version = str(dig(responses, "version", "json", "version") or "")
    container = probe.get("container") or {}
    # The local part of a version (+cu130, +cpu) says how it was built, not what it is.
    released = ("engine version", version.partition("+")[0], request.engine_version.partition("+")[0])
    checks: list[tuple[str, object, object]] = [
        ("served name", card.get("id"), request.served_name),
        ("model", card.get("root"), request.model_root),
        *([released] if request.release else []),
        ("image", container.get("image"), request.image),
        ("launch", container.get("labels", {}).get(LAUNCH_LABEL), request.launch),
        ("status for an unknown model", dig(responses, "unknown-model", "status"), HTTPStatus.NOT_FOUND.value),
    ]
    if request.max_model_len is not None:
        checks.append(("context length", card.get("max_model_len"), request.max_model_len))
    wrong = [(name, observed, expected) for name, observed, expected in checks if observed != expected]
    for name, observed, expected in wrong:
        yield failure(
            NAME, name.replace(" ", "-"), f"{name} is {one_line(str(observed))}", f"{expected}",
            f"look for another server on port {request.port}, then deploy again.", runbook="wrong-identity",
        )  # fmt: skip
    if not wrong:
        yield Verdict(
            NAME, "all", True, f"{request.served_name}, vLLM {one_line(version)}, {short_digest(request.image)}"
        )


GATE = Gate(
    name=NAME,
    proves="model, commit, version, image, launch and context length are the recipe's; an unknown model gets 404",
    order=20,
    optional=False,
    cheap=True,
    schema=None,
    roles=ROLES,
    requests=build_requests,
    judge=judge,
)
