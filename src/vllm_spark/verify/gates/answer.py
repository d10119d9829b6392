"""Gate: questions with one right answer get it.

Broken kernels, lost weights and stale chat templates all end with status 200 and a wrong text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_spark.core.text import one_line
from vllm_spark.core.types import Document
from vllm_spark.verify import requests
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.responses import read, status
from vllm_spark.verify.verdict import Verdict, failure

NAME = "answer"

# The questions of a recipe that names none: every sound model knows the answers.
DEFAULT_ANSWERS: Sequence[Document] = (
    {"ask": "What is the capital of France? Answer with one word.", "expect": "Paris"},
    {"ask": "What is 19 * 23? Answer with the number only.", "expect": "437"},
)
DEFAULT_MAX_TOKENS = 64
# At 4 tok/s, the slowest that the seeds report, 64 tokens take 16 s; other requests may queue before them.
TIMEOUT_S = 120


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one chat request per question."""
    for index, question in enumerate(request.answers):
        body = {
            "model": request.served_name,
            "messages": requests.user(question["ask"]),
            "max_tokens": question.get("max_tokens", DEFAULT_MAX_TOKENS),
            "temperature": 0,
        }
        yield requests.post(f"answer-{index}", requests.CHAT, body, TIMEOUT_S)


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict per question."""
    for index, question in enumerate(request.answers):
        response = probe["responses"].get(f"answer-{index}", {})
        message = read(response)
        text, expected = message.content, question["expect"]
        right = text.strip() == expected if question.get("match") == "exact" else expected in text
        if right:
            yield Verdict(NAME, str(index), True, f"{question['ask']} {one_line(text)}")
        else:
            yield failure(
                NAME, str(index),
                f"{question['ask']!r} got {text[:200]!r} ({message.fault or status(response)})", expected,
                "the weights, the kernels or the chat template are wrong; compare with the recipe's known issues.",
                runbook="wrong-answers",
            )  # fmt: skip


GATE = Gate(
    name=NAME,
    proves="questions with one right answer get it",
    order=60,
    optional=False,
    cheap=True,
    schema={
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["ask", "expect"],
            "properties": {
                "ask": {"type": "string", "minLength": 1},
                "expect": {"type": "string", "minLength": 1},
                "match": {"enum": ["exact", "contains"], "default": "contains"},
                "max_tokens": {"type": "integer", "minimum": 1, "maximum": 4096, "default": DEFAULT_MAX_TOKENS},
            },
        },
    },
    requests=build_requests,
    judge=judge,
)
