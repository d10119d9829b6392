"""Builders of the HTTP requests that gates need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.core.types import Document
from vllm_spark.node.engine_api import CHAT as CHAT_ROLE
from vllm_spark.node.engine_api import PROOFS
from vllm_spark.verify.probe_types import HttpRequest

# Timeout of /health, a list of models or one token.
SHORT_TIMEOUT_S = 30
# Other requests may queue before this one; its own tokens then come at 3 tok/s, below the slowest that the seeds report
# (3.7).
QUEUE_S = 60
SLOWEST_TOKENS_PER_S = 3

# The two forms of a request, in the order of `both_ids`.
FORMS = ("whole", "streamed")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

# A name that no server has: a server that answers it ignores the model of a request.
UNKNOWN_MODEL = "vllm-spark-no-such-model"


def get(id_: str, path: str) -> HttpRequest:
    """Return a GET request."""
    return {"id": id_, "method": "GET", "path": path, "timeout_s": SHORT_TIMEOUT_S}


def post(id_: str, path: str, body: Document, timeout_s: int) -> HttpRequest:
    """Return a POST request with a JSON body."""
    return {"id": id_, "method": "POST", "path": path, "body": body, "timeout_s": timeout_s}


def one_token(model: str, prompt: str) -> dict[str, Any]:
    """Return the body of the cheapest possible completion."""
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}


def proof(id_: str, model: str, timeout_s: int, role: str = CHAT_ROLE) -> HttpRequest:
    """Return the cheapest request that a server of a role answers: one token, vector or score."""
    return post(id_, PROOFS[role].path, {"model": model, **PROOFS[role].body}, timeout_s)


def user(content: str | Sequence[Document]) -> list[dict[str, Any]]:
    """Return a conversation of one turn."""
    return [{"role": "user", "content": content}]


def chat(id_: str, model: str, messages: Sequence[Document], max_tokens: int, **extra: Any) -> HttpRequest:
    """Return a greedy chat request. Thinking is off, because some models (Qwen) think by default and `max_tokens` is
    for the answer."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        **extra,
    }
    return post(id_, CHAT, body, QUEUE_S + max_tokens // SLOWEST_TOKENS_PER_S)


def both_ids(id_: str) -> tuple[str, str]:
    """Return the ids of the two requests that `both_forms` yields: whole, streamed."""
    return id_, f"{id_}-stream"


def both_forms(request: HttpRequest) -> Iterator[HttpRequest]:
    """Yield the request whole and streamed: an engine's parsers have a second implementation for streams."""
    whole, stream = both_ids(request["id"])
    body: Mapping[str, Any] = request["body"]
    yield {**request, "id": whole}
    yield {**request, "id": stream, "body": {**body, "stream": True, "stream_options": {"include_usage": True}}}
