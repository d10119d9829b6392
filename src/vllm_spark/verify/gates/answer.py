"""Exact answers: broken kernels, lost weights and stale chat templates all end with 200 and a wrong text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.core.text import plain
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates.responses import read, status
from vllm_spark.verify.gates.verdict import ANSWER, Verdict, miss

# Asked where a recipe names no questions of its own: any model that makes sense knows it.
DEFAULT_ANSWERS = (
    {"ask": "What is the capital of France? Answer with one word.", "expect": "Paris"},
    {"ask": "What is 19 * 23? Answer with the number only.", "expect": "437"},
)
DEFAULT_ANSWER_TOKENS = 64
# At 4 tok/s, the slowest that the seeds report, 64 tokens take 16 s; a queue may stand before them.
ANSWER_TIMEOUT_S = 120


def requests(name: str, answers: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for index, answer in enumerate(answers):
        body = {
            "model": name,
            "messages": gates_requests.user(answer["ask"]),
            "max_tokens": answer.get("max_tokens", DEFAULT_ANSWER_TOKENS),
            "temperature": 0,
        }
        yield gates_requests.post(f"answer-{index}", gates_requests.CHAT, body, ANSWER_TIMEOUT_S)


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del log
    for index, answer in enumerate(wanted["answers"]):
        response = probe["responses"].get(f"answer-{index}", {})
        message = read(response)
        said, expected = message.content, answer["expect"]
        good = said.strip() == expected if answer.get("match") == "exact" else expected in said
        if good:
            yield Verdict(ANSWER, str(index), True, f"{answer['ask']} {plain(said)}")
        else:
            yield miss(
                ANSWER, str(index),
                f"asked {answer['ask']!r}, got {said[:200]!r} ({message.fault or status(response)})", expected,
                "the weights, the kernels or the chat template are wrong; compare with the recipe's known issues.",
                runbook="wrong-answers",
            )  # fmt: skip
