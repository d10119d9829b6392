"""Gate: thinking is in its own field and the answer in the other, whole and streamed.

The field is `reasoning` since vLLM 0.18 and was `reasoning_content`. A parser that finds no delimiters leaves it null
(vLLM #38855), and the thinking is in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from vllm_spark.core.text import quoted
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "reasoning"
PROMPT = "A shop sells pens at 3 for 2 euros. What do 12 pens cost? Think first, then answer in one short sentence."
DEFAULT_MAX_TOKENS = 1024
THINKING = {"enable_thinking": True}

_failure = partial(failure, NAME, runbook="reasoning")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one question with thinking switched on, whole and streamed."""
    options = request.gates[NAME]
    yield from requests.both_forms(
        requests.chat(
            "reasoning",
            request.served_name,
            requests.user(PROMPT),
            options.get("max_tokens", DEFAULT_MAX_TOKENS),
            chat_template_kwargs=options.get("template_kwargs", THINKING),
        )
    )


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict for the whole and one for the streamed reply."""
    for form, id_ in zip(requests.FORMS, requests.both_ids("reasoning"), strict=True):
        message = responses.read(probe["responses"].get(id_, {}))
        fault = message.fault or next(faults(message), "")
        if fault:
            yield _failure(
                form, fault, "thinking in `reasoning`, the answer in `content`, and no tags in either",
                "set the reasoning-parser of this model's family and its own chat template.",
            )  # fmt: skip
        else:
            observed = f"{len(message.reasoning)} characters, then {quoted(message.content)}"
            yield Verdict(NAME, form, True, observed)


def faults(message: responses.Message) -> Iterator[str]:
    """Yield the faults of a reply with thinking."""
    for field, text in (("content", message.content), ("reasoning", message.reasoning)):
        tag = responses.leaked(text, (*responses.CHANNEL_TAGS, *responses.TOOL_TAGS))
        if tag:
            yield f"{tag} stands in {field}: {quoted(text)}"
    if not message.reasoning.strip():
        yield f"reasoning is empty, content is {quoted(message.content)}"
    if not message.content.strip():
        cut = " (max_tokens of the gate ended the thinking)" if message.finish == "length" else ""
        yield f"content is empty{cut}, reasoning is {quoted(message.reasoning)}"


GATE = Gate(
    name=NAME,
    proves="thinking has its own field, the answer another, and no tag is in either; whole and streamed",
    order=110,
    needs_reason_to_omit=True,
    schema={
        "type": "object",
        "additionalProperties": False,
        "description": "Thinking in its own field, the answer in the other, no tags in either, whole and streamed. "
        "{} switches it on.",
        "properties": {
            "template_kwargs": {
                "type": "object",
                "default": THINKING,
                "description": "What makes this model's chat template think.",
            },
            "max_tokens": {"type": "integer", "minimum": 64, "maximum": 16384, "default": DEFAULT_MAX_TOKENS},
        },
    },
    requests=build_requests,
    judge=judge,
)
