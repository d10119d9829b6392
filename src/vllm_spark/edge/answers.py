"""The edge's own answers: errors as arguments of HAProxy. Each has the shapes of OpenAI's API and of Anthropic's
at once: clients of one ignore what those of the other need. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from vllm_spark.core.run_command import for_everyone
from vllm_spark.inventory.edge import EdgeSettings

UNAVAILABLE = "service_unavailable_error"

# The edge's name -> (type, code, message). A text may have {limits} and {whole}, and %[…], which HAProxy replaces.
ERRORS: Mapping[str, tuple[str, str, str]] = {
    "forbidden": ("permission_error", "forbidden", "This address is not in vllm_edge.allow_from."),
    "host": ("invalid_request_error", "misdirected_request", "The header Host is not a name of this Spark."),
    "header": ("invalid_request_error", "header_too_large", "The header is larger than {limits.header_kib} KiB."),
    "path": ("invalid_request_error", "not_found", "The edge does not serve this path and method."),
    # LiteLLM takes every error of the type invalid_request_error for a faulty request, whatever its status is.
    "key": (
        "authentication_error",
        "invalid_api_key",
        "No valid API key: send Authorization: Bearer KEY, or x-api-key: KEY.",
    ),
    "two_keys": (
        "authentication_error",
        "invalid_api_key",
        "Authorization and x-api-key are not one key: send one of them.",
    ),
    "rate": (
        "rate_limit_error",
        "rate_limit_exceeded",
        "This key has made {limits.requests_per_minute} requests in a minute.",
    ),
    "streams": ("rate_limit_error", "rate_limit_exceeded", "This key has {limits.streams} requests at the same time."),
    "quota": (
        "rate_limit_error",
        "quota_exceeded",
        "This key has used its tokens of today. It is free again after midnight of this {whole}.",
    ),
    "batch": (
        "rate_limit_error",
        "batch_queue_full",
        "Keys of the class batch have {limits.batch_share} percent of the engine, and their queue is full: ask again.",
    ),
    "body": ("invalid_request_error", "body_too_large", "The body is larger than {limits.body_mib} MiB."),
    "empty": ("invalid_request_error", "empty_body", "The request has no body."),
    "model": ("invalid_request_error", "invalid_model", "The edge cannot read the model: %[var(txn.fault)]."),
    "inactive": (
        UNAVAILABLE,
        "model_not_active",
        "%[var(txn.model)] is not active: this {whole} serves %[var(txn.serves)]. Its owner changes that with: "
        "ansible-playbook switch.yml -e to=%[var(txn.of)]",
    ),
    "loading": (
        UNAVAILABLE,
        "model_loading",
        "The model is loading, which takes minutes for a large one: ask again.",
    ),
    # The engine is gone, before a request or during it.
    "ended": (
        UNAVAILABLE,
        "model_loading",
        "The engine has ended, and the model loads again; or its queue is full. Ask again.",
    ),
    "draining": (
        UNAVAILABLE,
        "model_draining",
        "The model is being stopped: its last requests end, and it takes no new one.",
    ),
    "lent": (
        UNAVAILABLE,
        "lent",
        "The memory of the model is lent to another program for %[var(txn.left)] s, and then it starts again.",
    ),
    "gave_up": (
        UNAVAILABLE,
        "model_failed",
        "The model does not start: its starts failed, or its Spark went down under them. Its owner sees why with: "
        "ansible-playbook status.yml, and starts it again with: ansible-playbook deploy.yml",
    ),
    "part": (
        UNAVAILABLE,
        "model_not_active",
        "This Spark has no model of its own now: it is a part of %[var(txn.part)]. Ask that Spark.",
    ),
    "elsewhere": (
        UNAVAILABLE,
        "model_not_active",
        "%[var(txn.model)] is not active: this {whole} serves %[var(txn.serves)]. On %[var(txn.elsewhere)] it is not "
        "started, still loads, or cannot be reached. Its owner sees which with: ansible-playbook status.yml",
    ),
    "no_right": (
        UNAVAILABLE,
        "model_not_active",
        "%[var(txn.model)] is not active: this {whole} serves %[var(txn.serves)]. This key may not start it. Its owner "
        "changes that with: ansible-playbook switch.yml -e to=%[var(txn.of)]",
    ),
    "no_switch": (
        UNAVAILABLE,
        "no_switch",
        "The Spark that has the model does not start it now: journalctl -u vllm-edge-switch there has the reason.",
    ),
    "unknown": (
        "invalid_request_error",
        "model_not_found",
        "No deployment has this model: this {whole} serves %[var(txn.serves)].",
    ),
    "member": ("permission_error", "forbidden", "This certificate does not belong to another Spark of vllm_edge.site."),
    "not_here": (UNAVAILABLE, "not_here", "No engine of this Spark serves the model now."),
    "gone": (
        UNAVAILABLE,
        "engine_unavailable",
        "The engine that had the model has just ended: ask again.",
    ),
    "who": ("invalid_request_error", "bad_forward", "The other edge does not say who asks."),
    "role_chat": ("invalid_request_error", "wrong_role", "This model chats: ask /v1/chat/completions."),
    "role_embed": ("invalid_request_error", "wrong_role", "This model makes vectors of texts: ask /v1/embeddings."),
    "role_rerank": ("invalid_request_error", "wrong_role", "This model sorts documents: ask /v1/rerank."),
    "none": (UNAVAILABLE, "nothing_started", "No model of this {whole} is started."),
}

# The status of HAProxy's own errors -> (type, code, message).
OWN_ERRORS: Mapping[int, tuple[str, str, str]] = {
    400: ("invalid_request_error", "bad_request", "The request is not valid HTTP."),
    408: ("invalid_request_error", "request_timeout", "The request took too long to arrive."),
    500: ("server_error", "edge_error", "The edge has failed."),
    502: ("server_error", "bad_gateway", "The engine ended this request without a valid answer."),
    503: (UNAVAILABLE, "engine_unavailable", "The engine does not answer, or its queue is full."),
    504: ("server_error", "gateway_timeout", "The engine did not answer in an hour."),
}

# Code or OpenAI's type of an error -> Anthropic's type, where it has another one. A model that is not there is not an
# `overloaded_error`: that one says that a model is there and busy.
ANTHROPIC_TYPES: Mapping[str, str] = {
    "not_found": "not_found_error",
    "model_not_found": "not_found_error",
    "body_too_large": "request_too_large",
    UNAVAILABLE: "api_error",
    "server_error": "api_error",
}

SERVICE_UNAVAILABLE = 503
# What an engine says with status 500 when its core has died, before it ends (vLLM v1/engine/exceptions.py).
DEAD = "EngineCore encountered an issue"
# Seconds after which a client asks again for a model that loads: neither liveness nor HAProxy's check is much faster.
RETRY_S = 10
# The least seconds of a model whose memory is lent: its lease may have ended, and the memory is not free yet.
LENT_RETRY_S = 60
# Seconds after which a batch job asks again. OpenAI's clients obey at most a minute.
BATCH_RETRY_S = 30
HEALTHY = 'content-type application/json string \'{"status":"ok"}\''


def arguments(settings: EdgeSettings, whole: str = "Spark") -> dict[str, str]:
    """Return the arguments of `http-request return` for each error of the edge. `whole` is what it serves."""
    return {
        name: _returned(type_, code, message.format(limits=settings.limits, whole=whole))
        for name, (type_, code, message) in ERRORS.items()
    }


def own_errors() -> Iterator[tuple[int, str]]:
    """Yield the status and the arguments of each error that HAProxy itself reports. After its start it takes every
    engine for one that is up until its first checks, so a 503 passes."""
    for status, error in OWN_ERRORS.items():
        yield status, _returned(*error) + (f" hdr Retry-After {RETRY_S}" if status == SERVICE_UNAVAILABLE else "")


def lacking(path: str, version: str, first: str) -> str:
    """Return the answer of a model whose engine lacks a path, which the version `first` was the first to have."""
    return _returned(
        "invalid_request_error", "not_found", f"The model runs on vLLM {version}. {path} needs vLLM {first} or later."
    )


def type_by_path(code: str, type_: str) -> str:
    """Return OpenAI's type of an error, or an expression of HAProxy where Anthropic has another one:
    haproxy-messages.j2 sets its variable for the paths of Anthropic's API."""
    anthropic = ANTHROPIC_TYPES.get(code) or ANTHROPIC_TYPES.get(type_)
    return f"%[var(txn.{anthropic},{type_})]" if anthropic else type_


def _returned(type_: str, code: str, message: str) -> str:
    """Return an error as arguments of HAProxy. No text has a quote or a percent sign outside of %[…]."""
    error = {"message": for_everyone(message), "type": type_by_path(code, type_), "param": None, "code": code}
    text = json.dumps({"type": "error", "error": error})
    return f"content-type application/json {'lf-' if '%[' in text else ''}string '{text}'"
