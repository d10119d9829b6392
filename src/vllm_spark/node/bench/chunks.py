"""Read what an event of a chat completion's stream holds. Servers differ, so every part is checked for its type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vllm_spark.node.bench.reader import Event, quote

Kind = TypeVar("Kind")
ERROR = b"error"
# Chunks that arrive within this time are one arrival: a gateway or a step of the engine sent them together.
TOGETHER_S = 0.001


@dataclass(frozen=True, slots=True)
class Chunk:
    """A choice of an event. `at` is in seconds since the request was sent. `ids` is None without token ids."""

    at: float
    reasoning: str
    content: str
    ids: tuple[int, ...] | None
    finish: str = ""

    @property
    def has_token(self) -> bool:
        return bool(self.ids) or bool(self.reasoning) or bool(self.content)


@dataclass(slots=True)
class Arrival:
    """Chunks with tokens that arrived together, at a time in seconds since the request was sent."""

    at: float
    tokens: float = 0.0
    chunks: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server counts. None: it does not say, or says something that is no count."""

    prompt: int | None
    completion: int | None
    cached: int | None


class ErrorEventError(Exception):
    """An event that is an error, or that cannot be read. The text has its beginning."""


def arrivals(chunks: Sequence[Chunk], *, has_ids: bool) -> list[Arrival]:
    """Return the arrivals of a stream's tokens. A chunk of a server without token ids counts as one token."""
    found: list[Arrival] = []
    for chunk in chunks:
        if not (chunk.ids if has_ids else chunk.has_token):
            continue
        if not found or chunk.at - found[-1].at >= TOGETHER_S:
            found.append(Arrival(chunk.at))
        found[-1].tokens += len(chunk.ids or ()) if has_ids else 1
        found[-1].chunks += 1
    return found


def documents(event: Event) -> list[dict[str, Any]]:
    """Return the objects of an event: one, or those of a list. Raises ErrorEventError."""
    if event.name == ERROR:
        raise ErrorEventError(quote(event.data))
    try:
        document = json.loads(event.data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ErrorEventError(f"an event is not JSON: {quote(event.data)}") from None
    listed = document if isinstance(document, list) else [document]
    for one in listed:
        if not isinstance(one, dict):
            raise ErrorEventError(f"an event is no object: {quote(event.data)}")
        if one.get("error"):
            raise ErrorEventError(quote(event.data))
    return listed


def of(document: dict[str, Any], at: float) -> Iterator[Chunk]:
    """Yield the chunks of an object. Raises ErrorEventError for one of another shape."""
    for choice in _as(list, document, "choices") or ():
        if not isinstance(choice, dict):
            raise ErrorEventError(f"a choice is no object: {_shown(choice)}")
        delta = _as(dict, choice, "delta") or {}
        ids = _as(list, choice, "token_ids")
        reasoning = _text(delta, "reasoning") or _text(delta, "reasoning_content")
        content = _text(delta, "content") + _tool_text(delta)
        finish = choice.get("finish_reason")
        yield Chunk(at, reasoning, content, None if ids is None else tuple(ids), str(finish) if finish else "")


def has_token(event: Event) -> bool:
    """Return True if an event holds a token. An event that cannot be read holds none."""
    try:
        return any(chunk.has_token for document in documents(event) for chunk in of(document, event.at))
    except ErrorEventError:
        return False


def usage(document: dict[str, Any]) -> Usage | None:
    """Return the usage of an object; None without one."""
    found = document.get("usage")
    if not isinstance(found, dict):
        return None
    details = found.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_count(found.get("prompt_tokens")), _count(found.get("completion_tokens")), _count(cached))


def _count(value: Any) -> int | None:
    """Return a count; None for everything else. JSON does not tell 64 from 64.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53 or value != int(value):
        return None
    return int(value)


def _as(kind: type[Kind], holder: dict[str, Any], name: str) -> Kind | None:
    """Return a member of an object; None if it is missing or null. Raises ErrorEventError for another type."""
    value = holder.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise ErrorEventError(f"{name} is {_shown(value)}")


def _text(delta: dict[str, Any], name: str) -> str:
    """Return a text of a delta, which is a text or a list of parts."""
    value = delta.get(name)
    if isinstance(value, list):
        return "".join(_as(str, part, "text") or "" for part in value if isinstance(part, dict))
    return _as(str, delta, name) or ""


def _tool_text(delta: dict[str, Any]) -> str:
    """Return the text of tool calls in a delta: they are part of the answer."""
    calls = [call for call in _as(list, delta, "tool_calls") or () if isinstance(call, dict)]
    functions = [_as(dict, call, "function") or {} for call in calls]
    return "".join(_text(function, "name") + _text(function, "arguments") for function in functions)


def _shown(value: Any) -> str:
    return quote(json.dumps(value).encode())
