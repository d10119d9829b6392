"""Reads the responses of a server without trusting any type in them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from vllm_spark.core.text import one_line, quoted
from vllm_spark.verify.probe_types import HttpResponse

# Tags that a template or a parser must remove from a text: Gemma 4's own, and those of other families.
TOOL_TAGS = ("<|tool_call", "tool_call|>", '<|"|>', "<tool_call>", "</tool_call>", "<function=", "[TOOL_CALLS]")
CHANNEL_TAGS = ("<|channel", "<channel|>", "<think>", "</think>", "<|turn", "<turn|>", "<|im_end|>", "<|im_start|>")


class MalformedError(Exception):
    """Raised for a response that is not a completion. Its text says why."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. `arguments` is the JSON text as the server sent it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """The first choice of a completion. If `fault` is set, the response is not one and the rest is empty."""

    fault: str = ""
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str = ""
    model: str = ""
    prompt_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[object, ...] | None = None


def dig(value: object, *path: str | int) -> Any:
    """Return the value under the keys and indices of `path`, or None if one is missing or has another type."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            inside = isinstance(value, list) and 0 <= step < len(value)
            value = value[step] if inside and isinstance(value, list) else None
    return value


def status(response: HttpResponse) -> str:
    """Return how a request ended, in words: its error, or its status with the server's message."""
    if response.get("error"):
        return one_line(str(response["error"]))
    if "status" not in response:
        return "no response"
    document = response.get("json")
    message = dig(document, "error", "message") or dig(document, "message")
    return f"status {response['status']}" + (f": {quoted(message)}" if isinstance(message, str) and message else "")


def read(response: HttpResponse) -> Message:
    """Return the message of a completion, whole or streamed. Never raises: `fault` says what is wrong with it."""
    try:
        return _read(response)
    except MalformedError as error:
        return Message(fault=str(error))


def leaked(text: str, tags: Sequence[str]) -> str:
    """Return the first of the tags that is in the text, or an empty string."""
    return next((tag for tag in tags if tag in text), "")


def vectors(response: HttpResponse) -> list[list[float]]:
    """Return the vectors of an answer of /v1/embeddings, in the order of the texts. Raises MalformedError."""
    found = [_numbers(dig(entry, "embedding")) for entry in _list(json_object(response), "data") or ()]
    if not found:
        raise MalformedError("an answer without a vector")
    return found


def ranking(response: HttpResponse) -> list[tuple[int, float]]:
    """Return (index of the document, its score) of an answer of /v1/rerank, in its order. Raises MalformedError."""
    found = []
    for entry in _list(json_object(response), "results") or ():
        index = count(dig(entry, "index"))
        if index is None:
            raise MalformedError(f"a result without an index: {quoted(entry)}")
        (score,) = _numbers([dig(entry, "relevance_score")])
        found.append((index, score))
    if not found:
        raise MalformedError("an answer without a score")
    return found


def json_object(response: HttpResponse) -> Mapping[str, Any]:
    """Return the JSON object of an answer. Raises MalformedError if it is none, or an error."""
    _expect_success(response)
    found = response.get("json")
    if not isinstance(found, Mapping):
        raise MalformedError(f"no JSON object but {quoted(response.get('text') or found)}")
    return found


def _expect_success(response: HttpResponse) -> None:
    if response.get("error") or response.get("status") != HTTPStatus.OK:
        raise MalformedError(status(response))


def _numbers(values: Any) -> list[float]:
    """Return finite numbers. JSON has no NaN, which an engine writes as null or refuses to write."""
    values = _expect(values, list, "a list of numbers")
    kinds = (type(value) in (int, float) and math.isfinite(value) for value in values)
    if wrong := [value for value, is_finite in zip(values, kinds, strict=True) if not is_finite]:
        raise MalformedError(f"{len(wrong)} of {len(values)} numbers are not finite, the first is {quoted(wrong[0])}")
    return [float(value) for value in values]


def _read(response: HttpResponse) -> Message:
    _expect_success(response)
    document: object = _join_stream(response) if "events" in response else json_object(response)
    choice = dig(document, "choices", 0)
    message = dig(choice, "message")
    if not isinstance(message, Mapping):
        # A plain completion has its text where a chat has its message.
        message = {"content": _expect(dig(choice, "text"), str, "a message")}
    return Message(
        content=_text(message, "content"),
        reasoning=_text(message, "reasoning") or _text(message, "reasoning_content"),
        calls=tuple(_call(call) for call in _list(message, "tool_calls") or ()),
        finish=_text(choice, "finish_reason"),
        model=_text(document, "model"),
        prompt_tokens=count(dig(document, "usage", "prompt_tokens")),
        token_ids=_token_ids(choice),
        logprobs=_logprobs(choice),
    )


def count(value: object) -> int | None:
    """Return the value if it is an integer and not a bool, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _expect(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise MalformedError(f"{quoted(value)} is not {name}")
    return value


def _text(holder: object, name: str) -> str:
    """Return a text; empty if it is null or absent."""
    value = dig(holder, name)
    return "" if value is None else str(_expect(value, str, f"a text: {name}"))


def _list(holder: object, name: str) -> list[Any] | None:
    value = dig(holder, name)
    return None if value is None else list(_expect(value, list, f"a list: {name}"))


def _call(call: object) -> ToolCall:
    function = dig(call, "function")
    return ToolCall(_text(call, "id"), _text(function, "name"), _text(function, "arguments"))


def _token_ids(choice: object) -> tuple[int, ...] | None:
    ids = _list(choice, "token_ids")
    if ids is None:
        return None
    if not all(count(number) is not None for number in ids):
        raise MalformedError(f"{quoted(ids)} are not token ids")
    return tuple(ids)


def _logprobs(choice: object) -> tuple[object, ...] | None:
    entries = _list(dig(choice, "logprobs"), "content")
    return None if entries is None else tuple(dig(entry, "logprob") for entry in entries)


def _join_stream(response: HttpResponse) -> dict[str, Any]:
    """Return one completion from the chunks of a stream, as a client joins them."""
    stream = _Stream()
    for event in events(response):
        stream.add(event)
    if not response.get("done"):
        raise MalformedError("the stream ends without its [DONE]")
    return stream.document()


def events(response: HttpResponse) -> Sequence[object]:
    """Return the events of a stream. Raises MalformedError if one of them is not JSON."""
    if response.get("bad"):
        raise MalformedError(f"a piece of the stream is not JSON: {quoted(response['bad'])}")
    return response["events"]


def arguments(text: str) -> object:
    """Return the parsed arguments of a call, or the text if they are not JSON. Never raises, also for deep nesting."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


class _Stream:
    """The parts of a streamed completion, joined so far."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.calls: dict[int, dict[str, str]] = {}
        self.ids: list[Any] = []
        self.logprobs: list[Any] = []
        self.first: object = None
        self.finish: object = None
        self.usage: object = None

    def add(self, event: object) -> None:
        if dig(event, "error") is not None:
            raise MalformedError(f"the stream says {quoted(dig(event, 'error'))}")
        self.first = event if self.first is None else self.first
        self.usage = dig(event, "usage") or self.usage
        choice = dig(event, "choices", 0)
        delta = dig(choice, "delta")
        for name in ("content", "reasoning", "reasoning_content"):
            self.texts[name] = self.texts.get(name, "") + _text(delta, name)
        for piece in _list(delta, "tool_calls") or ():
            self._add_call(piece)
        self.ids += _list(choice, "token_ids") or []
        self.logprobs += _list(dig(choice, "logprobs"), "content") or []
        self.finish = dig(choice, "finish_reason") or self.finish

    def _add_call(self, piece: object) -> None:
        index = count(dig(piece, "index"))
        if index is None:
            raise MalformedError(f"a piece of a tool call has no index: {quoted(piece)}")
        call = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = dig(piece, "function")
        call["id"] = call["id"] or _text(piece, "id")
        call["name"] += _text(function, "name")
        call["arguments"] += _text(function, "arguments")

    def document(self) -> dict[str, Any]:
        calls = [{"id": call["id"], "function": call} for _, call in sorted(self.calls.items())]
        choice = {
            "message": {**self.texts, "tool_calls": calls},
            "finish_reason": self.finish,
            "token_ids": self.ids or None,
            "logprobs": {"content": self.logprobs} if self.logprobs else None,
        }
        return {"model": dig(self.first, "model"), "usage": self.usage, "choices": [choice]}
