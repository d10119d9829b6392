"""Requests as vllm_probe takes them: id, method, path, body, and the time within which the whole reply must be there.

Further keys: `base`, the URL of another server than the engine; `prefix`, the beginning of the lines of text to return.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Of /health, a list of models or one token.
SHORT_TIMEOUT_S = 30
# A queue may stand before a request; then come its tokens at 3 tok/s, below the slowest that the seeds report (3.7).
QUEUE_S = 60
SLOWEST_TOKENS_PER_S = 3

# How a request was asked, in the order of `names`.
WAYS = ("whole", "streamed")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def get(name: str, path: str) -> dict[str, Any]:
    return {"id": name, "method": "GET", "path": path, "timeout_s": SHORT_TIMEOUT_S}


def post(name: str, path: str, body: Mapping[str, Any], timeout_s: int) -> dict[str, Any]:
    return {"id": name, "method": "POST", "path": path, "body": body, "timeout_s": timeout_s}


def one_token(model: str, prompt: str) -> dict[str, Any]:
    """The body of the cheapest completion there is."""
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}


def user(content: Any) -> list[dict[str, Any]]:
    """A conversation of one turn."""
    return [{"role": "user", "content": content}]


def chat(name: str, model: str, messages: Any, max_tokens: int, **extra: Any) -> dict[str, Any]:
    """A greedy chat request. A model that thinks unasked (Qwen's do) is told not to: its budget is for the answer."""
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
        **extra,
    }
    return post(name, CHAT, body, QUEUE_S + max_tokens // SLOWEST_TOKENS_PER_S)


def names(request: str) -> tuple[str, str]:
    """The ids under which `both_ways` asks it: whole, streamed."""
    return request, f"{request}-stream"


def both_ways(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The request whole and streamed: an engine's parsers have a second implementation for streams."""
    whole, stream = names(request["id"])
    yield {**request, "id": whole}
    streamed = {**request["body"], "stream": True, "stream_options": {"include_usage": True}}
    yield {**request, "id": stream, "body": streamed}
