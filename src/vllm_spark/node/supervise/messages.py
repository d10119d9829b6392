"""The messages of two supervisors: one JSON object per line, of a known kind and with known fields only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from vllm_spark.node.deployment_state import REASON_LENGTH, clean
from vllm_spark.node.supervise.host import Message

# A message of the longest reason, each of whose characters takes twelve bytes as JSON, is shorter.
LINE_BYTES = 8192
NAME_LENGTH = 200
TURNS = ("take", "taken", "give")
KINDS_OF_END = ("ended", "gave_up", "stopped")

Check = Callable[[Any], bool]


class InvalidMessageError(ValueError):
    """Raised for a line that is not a message. Its text contains nothing of the line."""


def _one(value: Any) -> bool:
    return value == 1 and type(value) is int


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= NAME_LENGTH and value.isprintable()


def _count(value: Any) -> bool:
    return isinstance(value, dict)  # starts.count_of reads it


def _reason(value: Any) -> bool:
    # `clean` appends two characters to a reason that it cuts.
    return isinstance(value, str) and len(value) <= REASON_LENGTH + 2 and value.isprintable()


# The first field names the kind of a message. A field in the second group may be absent.
MESSAGES: dict[str, tuple[dict[str, Check], dict[str, Check]]] = {
    "launch": (
        {"launch": _name, "image": _name, "toolkit": lambda v: v is None or _name(v)},
        {"gave_up": _reason, "count": _count},
    ),
    "count": ({"count": _count}, {}),
    "begin": ({"begin": _name}, {}),
    "beat": ({"beat": _one}, {}),
    "start": ({"start": _one}, {}),
    "turn": ({"turn": lambda value: value in TURNS, "number": _number}, {}),
    "serving": ({"serving": _one}, {}),
    # Of a head of several workers alone, so that no release before it has to know the message.
    "waits": ({"waits": _reason}, {}),
    "bye": ({"bye": _reason}, {"kind": lambda value: value in KINDS_OF_END}),
}


def parse(content: bytes) -> Message:
    """Return the message in a line. Raises InvalidMessageError."""
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidMessageError("it sent a line that is not JSON") from None
    if not isinstance(message, dict):
        raise InvalidMessageError("it sent a line that is not an object")
    kind = next((name for name in MESSAGES if name in message), "")
    required, optional = MESSAGES.get(kind, ({}, {}))
    checks = {**required, **optional}
    known = bool(kind) and required.keys() <= message.keys() <= checks.keys()
    if not known or not all(checks[name](value) for name, value in message.items()):
        raise InvalidMessageError(f"it sent a message{f' {kind!r}' if kind else ''} with fields that are not expected")
    return message


def serialize(message: Message) -> bytes:
    """Return a message as one line without its end. Reasons are bounded."""
    texts = {name: clean(message[name], REASON_LENGTH) for name in ("bye", "gave_up", "waits") if name in message}
    return json.dumps({**message, **texts}).encode()
