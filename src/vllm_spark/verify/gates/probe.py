"""Gate: seven questions that need reasoning get their one right answer.

A model that lost something in its weights or its kernels still writes well, and counts wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

from vllm_spark.core.text import quoted
from vllm_spark.verify import requests, responses
from vllm_spark.verify.gate import Gate
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.probe_types import HttpRequest, Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "probe"
DEFAULT_MAX_TOKENS = 512

FORM = " Think step by step. End with one line: `Answer:` and the answer alone."

# question, the one right answer in lower case
QUESTIONS = (
    ("A farmer has 17 sheep. All but 9 run away. How many sheep are left?", "9"),
    (
        "A pad and a pen cost 110 cents together. The pad costs 100 cents more than the pen. What does the pen cost?",
        "5",
    ),
    ("Which number comes next: 2, 6, 12, 20, 30, ...?", "42"),
    ("Anna is taller than Ben. Carl is shorter than Ben. Who is the shortest of the three?", "carl"),
    ("How many times does the letter r occur in the word strawberry?", "3"),
    ("Today is Wednesday. Which day of the week is it in 100 days?", "friday"),
    ("A train leaves at 14:45 and arrives at 17:20 the same day. How many minutes does it travel?", "155"),
)

# The last such line counts: a model may repeat the required form before it uses it.
ANSWER_LINE = re.compile(r"answer[`*_ ]*:(.*)", re.IGNORECASE)
WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?")

_failure = partial(failure, NAME, runbook="reasoning-probe")


def build_requests(request: GateRequest) -> Iterator[HttpRequest]:
    """Yield one chat request per question."""
    tokens = request.gates[NAME].get("max_tokens", DEFAULT_MAX_TOKENS)
    for index, (question, _) in enumerate(QUESTIONS):
        yield requests.chat(f"probe-{index}", request.served_name, requests.user(question + FORM), tokens)


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict: the score, with the wrong answers."""
    needed = request.gates[NAME]["needed"]
    wrong = []
    for index, (question, right) in enumerate(QUESTIONS):
        message = responses.read(probe["responses"].get(f"probe-{index}", {}))
        if message.fault:
            yield _failure(str(index), message.fault, "an answer", "read the log of the engine.")
            return
        if final_answer(message.content) != right:
            observed = final_answer(message.content) or quoted(message.content[-80:])
            wrong.append(f"{question} {observed}" + (" (cut by max_tokens)" if message.finish == "length" else ""))
    score = f"{len(QUESTIONS) - len(wrong)} of {len(QUESTIONS)} right"
    if len(QUESTIONS) - len(wrong) >= needed:
        yield Verdict(NAME, "score", True, score)
    else:
        yield _failure(
            "score", f"{score}; wrong: {'; '.join(wrong)}", f"at least {needed} right",
            "compare quantisation, KV cache type and backends with those of the run that set the recipe's score.",
        )  # fmt: skip


def final_answer(text: str) -> str:
    """Return the answer in the form of QUESTIONS: the first word or number of the last `Answer:` line, or nothing."""
    lines = ANSWER_LINE.findall(text)
    match = WORD.search(lines[-1].lower()) if lines else None
    return match[0] if match else ""


GATE = Gate(
    name=NAME,
    proves="of seven questions that need reasoning, as many are right as in a sound run",
    order=120,
    needs_reason_to_omit=True,
    schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["needed"],
        "description": "Seven questions that need reasoning, without the thinking mode.",
        "properties": {
            "needed": {
                "type": "integer",
                "minimum": 1,
                "maximum": len(QUESTIONS),
                "description": "How many must be right: the score of a sound run of this model.",
            },
            "max_tokens": {"type": "integer", "minimum": 64, "maximum": 4096, "default": DEFAULT_MAX_TOKENS},
        },
    },
    requests=build_requests,
    judge=judge,
)
