"""Reads the responses of Anthropic's API without trusting any type in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from vllm_spark.core.text import quoted
from vllm_spark.verify.probe_types import HttpResponse
from vllm_spark.verify.responses import MalformedError, arguments, count, dig, events, status

# Fields of `usage` that together are the tokens of the prompt.
PROMPT_TOKENS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
# Kind of a piece of a stream -> its field, and the field of the block to which it is added.
PIECES = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "input"),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A message. If `fault` is set, the response is not one and the rest is empty. `calls` are name and arguments of
    the tools that it calls; `prompt_tokens` includes those of the prefix cache."""

    fault: str = ""
    text: str = ""
    calls: tuple[tuple[str, object], ...] = ()
    stop: str = ""
    prompt_tokens: int = 0


def read(response: HttpResponse) -> Reply:
    """Return a message, whole or streamed. Never raises: `fault` says what is wrong with it."""
    try:
        if response.get("error") or response.get("status") != HTTPStatus.OK:
            raise MalformedError(status(response))
        return _reply(_joined(response) if "events" in response else response.get("json"))
    except MalformedError as error:
        return Reply(fault=str(error))


def _reply(message: object) -> Reply:
    kind = (dig(message, "type"), dig(message, "role"))
    if kind != ("message", "assistant"):
        raise MalformedError(f"type and role are {quoted(kind)}")
    blocks, usage = dig(message, "content"), dig(message, "usage")
    if not isinstance(blocks, list):
        raise MalformedError(f"the content is {quoted(blocks)}")
    if not count(dig(usage, "output_tokens")):
        raise MalformedError(f"the usage is {quoted(usage)}")
    calls = [block for block in blocks if dig(block, "type") == "tool_use"]
    if not all(_word(dig(call, "id")) for call in calls):
        raise MalformedError(f"a call has no id: {quoted(calls)}")
    return Reply(
        text="".join(_word(dig(block, "text")) for block in blocks if dig(block, "type") == "text"),
        calls=tuple((_word(dig(call, "name")), dig(call, "input")) for call in calls),
        stop=_word(dig(message, "stop_reason")),
        prompt_tokens=sum(count(dig(usage, name)) or 0 for name in PROMPT_TOKENS),
    )


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _joined(response: HttpResponse) -> dict[str, Any]:
    """Return one message from the events of a stream, as Anthropic's clients join them."""
    stream = _Stream()
    for event in events(response):
        stream.add(event)
    if not stream.ended:
        raise MalformedError("the stream ends without its message_stop")
    return stream.message


class _Stream:
    """The parts of a streamed message, joined so far. A block begins, gets its pieces, and ends before the next one."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self.block: dict[str, Any] = {}
        self.ended = False

    def add(self, event: object) -> None:
        kind = _word(dig(event, "type"))
        if kind == "ping":
            return
        steps = {
            "message_start": (not self.message, self._begin),
            "content_block_start": (self.message and not self.block, self._open),
            "content_block_delta": (self.block, self._extend),
            "content_block_stop": (self.block, self._close),
            "message_delta": (self.message and not self.block, self._end),
            "message_stop": ("stop_reason" in self.message, self._stop),
        }
        in_order, step = steps.get(kind, (False, self._stop))
        if not in_order or self.ended:
            raise MalformedError(f"the stream says {quoted(event)} where it may not")
        step(event)

    def _begin(self, event: object) -> None:
        start = dig(event, "message")
        if not isinstance(start, Mapping):
            raise MalformedError(f"a message begins with {quoted(start)}")
        self.message = {**start, "content": []}
        self.message.pop("stop_reason", None)

    def _open(self, event: object) -> None:
        block = dig(event, "content_block")
        if not isinstance(block, Mapping) or not block or dig(event, "index") != len(self.message["content"]):
            raise MalformedError(f"a block begins with {quoted(event)}")
        self.block = {**block}
        if block.get("type") == "tool_use":
            self.block["input"] = ""

    def _extend(self, event: object) -> None:
        source, field = PIECES.get(_word(dig(event, "delta", "type")), ("", ""))
        piece = dig(event, "delta", source)
        if not isinstance(piece, str):
            raise MalformedError(f"a piece of a block is {quoted(event)}")
        self.block[field] = _word(self.block.get(field)) + piece

    def _close(self, event: object) -> None:
        if self.block.get("type") == "tool_use":
            self.block["input"] = arguments(self.block["input"])
        self.message["content"].append(self.block)
        self.block = {}

    def _end(self, event: object) -> None:
        self.message |= {"stop_reason": dig(event, "delta", "stop_reason"), "usage": dig(event, "usage")}

    def _stop(self, event: object) -> None:
        self.ended = True
