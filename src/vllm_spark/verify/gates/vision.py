"""Gate: the model sees. Two pictures have two colours each, the second mirrored, so that one guess cannot be right for
both."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial

from vllm_spark.core.text import quoted
from vllm_spark.core.types import Document
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "vision"
MAX_TOKENS = 32
SIDE = 64
COLOURS = {"red": b"\xff\x00\x00", "blue": b"\x00\x00\xff"}
PICTURES = (("red", "blue"), ("blue", "red"))
PROMPT = (
    "Which colour is the left half of this picture, and which the right half? Answer with the two colours in order."
)
# Gemma 4 uses 70 tokens for its smallest picture; an engine that drops the picture keeps a few for its placeholder.
DEFAULT_LEAST_TOKENS = 50

_failure = partial(failure, NAME, runbook="vision")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield the prompt without a picture, then with each picture."""
    model = request.served_name
    yield requests.chat("vision-text", model, requests.user(PROMPT), 1)
    for left, right in PICTURES:
        picture = {"type": "image_url", "image_url": {"url": data_url(left, right)}}
        content: list[Document] = [picture, {"type": "text", "text": PROMPT}]
        yield requests.chat(f"vision-{left}-{right}", model, requests.user(content), MAX_TOKENS)


@lru_cache
def data_url(left: str, right: str) -> str:
    """Return a PNG of SIDE x SIDE pixels, 8 bit RGB, as a data URL (PNG specification: signature, IHDR, IDAT, IEND)."""
    row = b"\x00" + COLOURS[left] * (SIDE // 2) + COLOURS[right] * (SIDE // 2)
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(row * SIDE)), (b"IEND", b""))
    chunks = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict per picture."""
    least = request.gates[NAME].get("least_tokens", DEFAULT_LEAST_TOKENS)
    text_only = responses.read(probe["responses"].get("vision-text", {}))
    for left, right in PICTURES:
        message = responses.read(probe["responses"].get(f"vision-{left}-{right}", {}))
        fault = text_only.fault or message.fault or next(faults((left, right), message, text_only, least), "")
        if fault:
            yield _failure(
                f"{left}-{right}", fault, f"{left}, then {right}, and {least} tokens for the picture",
                "see that the recipe does not switch pictures off and that the chat template knows image_url.",
            )  # fmt: skip
        else:
            yield Verdict(NAME, f"{left}-{right}", True, quoted(message.content))


def faults(
    colours: tuple[str, str], message: responses.Message, text_only: responses.Message, least: int
) -> Iterator[str]:
    """Yield the faults of a reply to a picture. `least` is in tokens."""
    with_picture, without = message.prompt_tokens, text_only.prompt_tokens
    if with_picture is None or without is None:
        yield "the replies do not say how many tokens the prompt has"
    elif with_picture - without < least:
        yield f"the prompt has {with_picture} tokens with the picture and {without} without"
    named = re.findall("|".join(COLOURS), message.content.lower())
    if tuple(named[:2]) != colours:
        yield f"it sees {quoted(message.content)}"


GATE = Gate(
    name=NAME,
    proves="the model names the colours of two pictures in their order",
    order=100,
    needs_reason_to_omit=True,
    schema={
        "type": "object",
        "additionalProperties": False,
        "description": "Two pictures of two colours, named in order. {} switches it on.",
        "properties": {
            "least_tokens": {
                "type": "integer",
                "minimum": 1,
                "default": DEFAULT_LEAST_TOKENS,
                "description": "By how many tokens a picture of 64 x 64 lengthens the prompt at least.",
            }
        },
    },
    requests=build_requests,
    judge=judge,
)
