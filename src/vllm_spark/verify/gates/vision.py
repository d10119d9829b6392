"""The model sees: two pictures of two colours each, the second mirrored, so that a guess cannot be right for both."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from vllm_spark.core import text
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates import responses
from vllm_spark.verify.gates.verdict import VISION, Verdict, miss

NAME = VISION
MAX_TOKENS = 32
SIDE = 64
COLOURS = {"red": b"\xff\x00\x00", "blue": b"\x00\x00\xff"}
PICTURES = (("red", "blue"), ("blue", "red"))
PROMPT = (
    "Which colour is the left half of this picture, and which the right half? Answer with the two colours in order."
)
# Gemma 4 takes 70 tokens for its smallest picture; an engine that drops the picture keeps a few for its place.
DEFAULT_LEAST_TOKENS = 50

_miss = partial(miss, NAME, runbook="vision")


def requests(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    del options
    yield gates_requests.chat("vision-text", name, gates_requests.user(PROMPT), 1)
    for left, right in PICTURES:
        picture = {"type": "image_url", "image_url": {"url": data_url(left, right)}}
        content = [picture, {"type": "text", "text": PROMPT}]
        yield gates_requests.chat(f"vision-{left}-{right}", name, gates_requests.user(content), MAX_TOKENS)


@lru_cache
def data_url(left: str, right: str) -> str:
    """A PNG of SIDE x SIDE pixels, 8 bit RGB, as a data URL (PNG specification: signature, IHDR, IDAT, IEND)."""
    row = b"\x00" + COLOURS[left] * (SIDE // 2) + COLOURS[right] * (SIDE // 2)
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * SIDE)), (b"IEND", b""))
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    least = wanted["gates"][NAME].get("least_tokens", DEFAULT_LEAST_TOKENS)
    text_only = responses.read(probe["responses"].get("vision-text", {}))
    for left, right in PICTURES:
        message = responses.read(probe["responses"].get(f"vision-{left}-{right}", {}))
        wrong = text_only.fault or message.fault or next(faults((left, right), message, text_only, least), "")
        if wrong:
            yield _miss(
                f"{left}-{right}", wrong, f"{left}, then {right}, and {least} tokens for the picture",
                "see that the recipe does not switch pictures off and that the chat template knows image_url.",
            )  # fmt: skip
        else:
            yield Verdict(NAME, f"{left}-{right}", True, text.shown(message.content))


def faults(
    colours: tuple[str, str], message: responses.Message, text_only: responses.Message, least: int
) -> Iterator[str]:
    with_picture, without = message.prompt_tokens, text_only.prompt_tokens
    if with_picture is None or without is None:
        yield "the replies do not say how many tokens the prompt has"
    elif with_picture - without < least:
        yield f"the prompt has {with_picture} tokens with the picture and {without} without"
    named = re.findall("|".join(COLOURS), message.content.lower())
    if tuple(named[:2]) != colours:
        yield f"it sees {text.shown(message.content)}"
