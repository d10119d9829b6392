"""Thinking comes in its own field and the answer in the other, whole and streamed.

The field is `reasoning` since vLLM 0.18 and was `reasoning_content`; a parser that finds no delimiters leaves it null
(vLLM #38855), and the thinking stands in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vllm_spark.core import text as core_text
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates import responses
from vllm_spark.verify.gates.verdict import REASONING, Verdict, miss

NAME = REASONING
PROMPT = "A shop sells pens at 3 for 2 euros. What do 12 pens cost? Think first, then answer in one short sentence."
DEFAULT_MAX_TOKENS = 1024
THINKING = {"enable_thinking": True}

_miss = partial(miss, NAME, runbook="reasoning")


def requests(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    thinking = {"chat_template_kwargs": options.get("template_kwargs", THINKING)}
    tokens = options.get("max_tokens", DEFAULT_MAX_TOKENS)
    yield from gates_requests.both_ways(
        gates_requests.chat("reasoning", name, gates_requests.user(PROMPT), tokens, **thinking)
    )


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del wanted, log
    for way, name in zip(gates_requests.WAYS, gates_requests.names("reasoning"), strict=True):
        message = responses.read(probe["responses"].get(name, {}))
        wrong = message.fault or next(faults(message), "")
        if wrong:
            yield _miss(
                way, wrong, "thinking in `reasoning`, the answer in `content`, and no tags in either",
                "set the reasoning-parser of this model's family and its own chat template.",
            )  # fmt: skip
        else:
            yield Verdict(
                NAME, way, True, f"{len(message.reasoning)} characters, then {core_text.shown(message.content)}"
            )


def faults(message: responses.Message) -> Iterator[str]:
    for field, text in (("content", message.content), ("reasoning", message.reasoning)):
        tag = responses.leaked(text, (*responses.CHANNEL_TAGS, *responses.TOOL_TAGS))
        if tag:
            yield f"{tag} stands in {field}: {core_text.shown(text)}"
    if not message.reasoning.strip():
        yield f"reasoning is empty, content is {core_text.shown(message.content)}"
    if not message.content.strip():
        cut = " (max_tokens of the gate ended the thinking)" if message.finish == "length" else ""
        yield f"content is empty{cut}, reasoning is {core_text.shown(message.reasoning)}"
