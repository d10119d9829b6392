"""Gate: a longer text is not garbage: neither its token ids and its text (node.garbage) nor its log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from vllm_spark.core.text import quoted
from vllm_spark.node import garbage
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "garbage"

PROMPT = "Explain in about 150 words, in plain prose without lists, how bread is made and why the dough rises."
MAX_TOKENS = 160

# A greedy choice is never that unlikely. vLLM 0.19.1 to 0.30 write -9999 for minus infinity
# (chat_completion/serving.py).
LEAST_LOGPROB = -1000.0
# Zero, and what rounding adds.
MOST_LOGPROB = 0.01

_failure = partial(failure, NAME, runbook="garbage")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one request for a text of MAX_TOKENS, whole and streamed."""
    extra = {"logprobs": True} if request.gates[NAME].get("logprobs", True) else {}
    messages = requests.user(PROMPT)
    yield from requests.both_forms(
        requests.chat("garbage", request.served_name, messages, MAX_TOKENS, return_token_ids=True, **extra)
    )


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict for the whole and one for the streamed text."""
    for form, id_ in zip(requests.FORMS, requests.both_ids("garbage"), strict=True):
        message = responses.read(probe["responses"].get(id_, {}))
        if message.fault:
            yield _failure(form, message.fault, "a text", "read the log of the engine.")
            continue
        fault = next(faults(message), "")
        if fault:
            yield _failure(
                form, f"{fault}; the text is {quoted(message.content)}", "sound text",
                "the kernels compute wrong numbers: compare the backends in the log with the recipe's log gates.",
            )  # fmt: skip
        else:
            ids = f"{len(message.token_ids)} token ids" if message.token_ids else "no token ids"
            yield Verdict(NAME, form, True, f"{len(message.content)} characters, {ids}")


def faults(message: responses.Message) -> Iterator[str]:
    """Yield the signs of garbage in a message. Token ids come first: they show what a text hides."""
    if message.token_ids:
        yield from garbage.in_ids(message.token_ids)
    if message.logprobs:
        yield from _in_logprobs(message.logprobs)
    yield from garbage.in_text(message.content)
    if not message.token_ids and not message.logprobs:
        yield "the reply has neither token ids nor log-probabilities, although both were requested"


def _in_logprobs(logprobs: Sequence[object]) -> Iterator[str]:
    """A value that is not a number was NaN or infinite, which JSON cannot express."""
    for value in logprobs:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        # NaN compares as False with anything.
        if not LEAST_LOGPROB <= number <= MOST_LOGPROB:
            yield f"a log-probability is {quoted(value)}"
            return


GATE = Gate(
    name=NAME,
    proves="a longer text has no signs of NaN: token ids, log-probabilities and text; whole and streamed",
    order=70,
    needs_reason_to_omit=True,
    schema={
        "type": "object",
        "additionalProperties": False,
        "description": "A text of 160 tokens has no signs of NaN: token ids, log-probabilities and the text, whole and "
        "streamed. {} switches it on.",
        "properties": {
            "logprobs": {
                "type": "boolean",
                "default": True,
                "description": "false for an engine that refuses log-probabilities, e.g. with speculative decoding.",
            }
        },
    },
    requests=build_requests,
    judge=judge,
)
