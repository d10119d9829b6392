"""Read what an event of a chat completion's stream holds. Servers differ, so every part is checked for its type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vllm_spark.node.bench.reader import Event, quote

Kind = TypeVar("Kind")
ERROR = b"error"
MESSAGE = (b"", b"message")
# Finish reasons of an answer that is not whole: vLLM's FinishReason, SGLang's FINISH_ABORT, OpenAI's API, DeepSeek's.
FAULTS = ("error", "abort", "aborted", "content_filter", "insufficient_system_resource")
# Members of a delta with reasoning, and those without a token.
REASONING = ("reasoning", "reasoning_content", "reasoning_details", "thinking", "thinking_blocks")
NO_TOKEN = frozenset({"role", "id", "name", "type", "format", "signature", "channel", "recipient", "model"})
# Members of a part that hold its text, which may be parts again.
OF_PART = ("text", "thinking", "summary")
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
    # The error that ended the answer; empty without one.
    fault: str = ""

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
    reasoning: int | None


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
        if event.name not in MESSAGE:  # WHATWG, 9.2.6: an event of another type is no message
            return []
        raise ErrorEventError(f"an event is not JSON: {quote(event.data)}") from None
    listed = document if isinstance(document, list) else [document]
    for one in listed:
        if not isinstance(one, dict):
            raise ErrorEventError(f"an event is no object: {quote(event.data)}")
        if _is_error(one):
            raise ErrorEventError(quote(event.data))
    return listed


def _is_error(document: dict[str, Any]) -> bool:
    """Return True for an object that is an error: OpenAI's and TGI's `error`, `object: error` of Mistral, TensorRT-LLM
    and vLLM before 0.11, `type: error` of Anthropic, and FastAPI's `detail`."""
    named = "error" in (document.get("object"), document.get("type")) or bool(document.get("error"))
    return named or ("choices" not in document and bool(document.get("detail")))


def of(document: dict[str, Any], at: float) -> Iterator[Chunk]:
    """Yield the chunks of an object. Raises ErrorEventError for one of another shape."""
    for choice in _as(list, document, "choices") or ():
        if not isinstance(choice, dict):
            raise ErrorEventError(f"a choice is no object: {_shown(choice)}")
        delta = _as(dict, choice, "delta") or _as(dict, choice, "message") or {}
        ids = _as(list, choice, "token_ids")
        known = ids is not None and all(type(one) is int for one in ids)
        reasoning = next((text for name in REASONING if (text := _text(delta.get(name)))), "")
        content = _text(delta.get("content")) + _tool_text(delta)
        finish = choice.get("finish_reason")
        reason = finish.get("type") if isinstance(finish, dict) else finish
        fault = _shown(choice.get("error") or finish) if choice.get("error") or reason in FAULTS else ""
        content = content or ("" if reasoning else _other_text(delta))
        yield Chunk(at, reasoning, content, tuple(ids or ()) if known else None, str(finish) if finish else "", fault)


def has_token(event: Event) -> bool:
    """Return True if an event holds a token. An event that cannot be read holds none."""
    try:
        return any(chunk.has_token for document in documents(event) for chunk in of(document, event.at))
    except ErrorEventError:
        return False


def usage(document: dict[str, Any]) -> Usage | None:
    """Return the usage of an object, or of its choice as Moonshot's API has it; None without one."""
    choices = document.get("choices")
    holders = [document, *(choices if isinstance(choices, list) else ())]
    found = next(
        (one for each in holders if isinstance(each, dict) and isinstance(one := each.get("usage"), dict)), None
    )
    if found is None:
        return None
    read, written = (found.get(f"{name}_tokens_details") for name in ("prompt", "completion"))
    cached = read.get("cached_tokens") if isinstance(read, dict) else None
    reasoning = written.get("reasoning_tokens") if isinstance(written, dict) else None
    counts = (found.get("prompt_tokens"), found.get("completion_tokens"), cached, reasoning)
    return Usage(*map(_count, counts))


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


def _text(value: Any) -> str:
    """Return a text, or that of a list of parts, such as Mistral's thinking. Raises ErrorEventError."""
    if isinstance(value, list):
        return "".join(_text(next((part[name] for name in OF_PART if part.get(name)), "")) for part in _objects(value))
    if value is None or isinstance(value, str):
        return value or ""
    raise ErrorEventError(f"a text is {_shown(value)}")


def _other_text(delta: dict[str, Any]) -> str:
    """Return the text of a member without a known name, such as a refusal: it is a token all the same."""
    others = [value for name, value in delta.items() if name not in NO_TOKEN]
    return next((value for value in others if isinstance(value, str) and value), "")


def _tool_text(delta: dict[str, Any]) -> str:
    """Return the text of tool calls in a delta, which are part of the answer. A head with a name alone has no token."""
    functions = [_as(dict, call, "function") or {} for call in _objects(_as(list, delta, "tool_calls") or ())]
    functions.append(_as(dict, delta, "function_call") or {})
    return "".join(_text(one.get("name")) + _text(one["arguments"]) for one in functions if one.get("arguments"))


def _objects(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]


def _shown(value: Any) -> str:
    return quote(json.dumps(value).encode())
