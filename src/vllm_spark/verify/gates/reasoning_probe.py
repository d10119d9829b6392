"""Seven questions that need a thought each and have one right answer: a model that lost something in its weights or its
kernels still writes well, and counts wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vllm_spark.core import text as core_text
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates import responses
from vllm_spark.verify.gates.verdict import PROBE, Verdict, miss

NAME = PROBE
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

# The last such line counts: a model may name the form before it uses it.
ANSWER_LINE = re.compile(r"answer[`*_ ]*:(.*)", re.IGNORECASE)
WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?")

_miss = partial(miss, NAME, runbook="reasoning-probe")


def requests(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    tokens = options.get("max_tokens", DEFAULT_MAX_TOKENS)
    for index, (question, _) in enumerate(QUESTIONS):
        yield gates_requests.chat(f"probe-{index}", name, gates_requests.user(question + FORM), tokens)


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    """One verdict: the score. It names what was answered wrong."""
    del log
    needed = wanted["gates"][NAME]["needed"]
    wrong = []
    for index, (question, right) in enumerate(QUESTIONS):
        message = responses.read(probe["responses"].get(f"probe-{index}", {}))
        if message.fault:
            yield _miss(str(index), message.fault, "an answer", "read the log of the engine.")
            return
        if graded(message.content) != right:
            said = graded(message.content) or core_text.shown(message.content[-80:])
            wrong.append(f"{question} {said}" + (" (cut by max_tokens)" if message.finish == "length" else ""))
    score = f"{len(QUESTIONS) - len(wrong)} of {len(QUESTIONS)} right"
    if len(QUESTIONS) - len(wrong) >= needed:
        yield Verdict(NAME, "score", True, score)
    else:
        yield _miss(
            "score", f"{score}; wrong: {'; '.join(wrong)}", f"{needed}",
            "compare quantisation, KV cache type and backends with those of the run that set the recipe's score.",
        )  # fmt: skip


def graded(text: str) -> str:
    """The answer in the form that QUESTIONS has: the first word or number of the last `Answer:` line, or nothing."""
    lines = ANSWER_LINE.findall(text)
    found = WORD.search(lines[-1].lower()) if lines else None
    return found[0] if found else ""
