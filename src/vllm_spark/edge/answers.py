"""The edge's own answers: errors of the shape of OpenAI's API, as arguments of HAProxy. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from vllm_spark.inventory.edge import EdgeSettings

# The edge's name -> (type, code, message). A text may have {limits} and {whole}, and %[…], which HAProxy replaces.
ERRORS: Mapping[str, tuple[str, str, str]] = {
    "forbidden": ("permission_error", "forbidden", "This address is not in vllm_edge.allow_from."),
    "host": ("invalid_request_error", "misdirected_request", "The header Host is not a name of this Spark."),
    "header": ("invalid_request_error", "header_too_large", "The header is larger than {limits.header_kib} KiB."),
    "path": ("invalid_request_error", "not_found", "The edge does not serve this path and method."),
    # LiteLLM takes every error of the type invalid_request_error for a faulty request, whatever its status is.
    "key": ("authentication_error", "invalid_api_key", "No valid API key: send Authorization: Bearer KEY."),
    "rate": (
        "rate_limit_error",
        "rate_limit_exceeded",
        "This key has made {limits.requests_per_minute} requests in a minute.",
    ),
    "streams": ("rate_limit_error", "rate_limit_exceeded", "This key has {limits.streams} requests at the same time."),
    "body": ("invalid_request_error", "body_too_large", "The body is larger than {limits.body_mib} MiB."),
    "empty": ("invalid_request_error", "empty_body", "The request has no body."),
    "inactive": (
        "service_unavailable_error",
        "model_not_active",
        "%[var(txn.model)] is not active: this {whole} serves %[var(txn.serves)]. Its owner changes that with: "
        "ansible-playbook switch.yml -e to=%[var(txn.of)]",
    ),
    "no_right": (
        "service_unavailable_error",
        "model_not_active",
        "%[var(txn.model)] is not active: this {whole} serves %[var(txn.serves)]. This key may not start it. Its owner "
        "changes that with: ansible-playbook switch.yml -e to=%[var(txn.of)]",
    ),
    "no_switch": (
        "service_unavailable_error",
        "no_switch",
        "The Spark that has the model does not start it now: journalctl -u vllm-edge-switch there has the reason.",
    ),
    "unknown": (
        "invalid_request_error",
        "model_not_found",
        "No deployment has this model: this {whole} serves %[var(txn.serves)].",
    ),
    "member": ("permission_error", "forbidden", "This certificate does not belong to another Spark of vllm_edge.site."),
    "not_here": ("service_unavailable_error", "not_here", "No engine of this Spark serves the model now."),
    "gone": (
        "service_unavailable_error",
        "no_model_active",
        "The engine that had the model has just ended: ask again.",
    ),
    "who": ("invalid_request_error", "bad_forward", "The other edge does not say who asks."),
    "none": ("service_unavailable_error", "no_model_active", "No engine answers: none is started, or it still loads."),
}

# The status of HAProxy's own errors -> (type, code, message).
OWN_ERRORS: Mapping[int, tuple[str, str, str]] = {
    400: ("invalid_request_error", "bad_request", "The request is not valid HTTP."),
    408: ("invalid_request_error", "request_timeout", "The request took too long to arrive."),
    500: ("server_error", "edge_error", "The edge has failed."),
    502: ("server_error", "bad_gateway", "The engine ended this request without a valid answer."),
    503: ("service_unavailable_error", "no_model_active", "The engine does not answer, or its queue is full."),
    504: ("server_error", "gateway_timeout", "The engine did not answer in an hour."),
}

HEALTHY = 'content-type application/json string \'{"status":"ok"}\''


def arguments(settings: EdgeSettings, whole: str = "Spark") -> dict[str, str]:
    """Return the arguments of `http-request return` for each error of the edge. `whole` is what it serves."""
    return {
        name: f"content-type application/json {'lf-' if '%[' in message else ''}string "
        + _quoted(type_, code, message.format(limits=settings.limits, whole=whole))
        for name, (type_, code, message) in ERRORS.items()
    }


def own_errors() -> Iterator[tuple[int, str]]:
    """Yield the status and the quoted body of each error that HAProxy itself reports."""
    for status, error in OWN_ERRORS.items():
        yield status, _quoted(*error)


def _quoted(type_: str, code: str, message: str) -> str:
    """Return an error as a word of HAProxy. No text has a quote or a percent sign outside of %[…]."""
    error = {"message": message, "type": type_, "param": None, "code": code}
    return f"'{json.dumps({'error': error})}'"
