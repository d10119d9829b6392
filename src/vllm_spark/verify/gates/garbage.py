"""Text that is none: NaN in a kernel ends with 200 and a text of token 0, which is `!` in some vocabularies and nothing
to see in Gemma's, so token ids are judged as well as text."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vllm_spark.core import text as core_text
from vllm_spark.verify.gates import requests as gates_requests
from vllm_spark.verify.gates import responses
from vllm_spark.verify.gates.verdict import GARBAGE, Verdict, miss

NAME = GARBAGE

PROMPT = "Explain in about 150 words, in plain prose without lists, how bread is made and why the dough rises."
MAX_TOKENS = 160

# Below these a share of something says nothing.
LEAST_IDS, LEAST_IDS_FOR_RATIO = 8, 64
LEAST_CHARACTERS, LEAST_CHARACTERS_FOR_RATIO, LEAST_WORDS = 20, 200, 32

MOST_ID_0_SHARE = 0.2
LEAST_UNIQUE_SHARE = 0.15
LONGEST_RUN = 12
MOST_ONE_CHARACTER_SHARE = 0.5
MOST_COMPRESSION = 6.0
LEAST_PRINTABLE_SHARE = 0.95
# A greedy choice is never that unlikely: 0.19.1 to 0.30 write -9999 for minus infinity (chat_completion/serving.py).
LEAST_LOGPROB = -1000.0
# Zero, and what rounding adds.
MOST_LOGPROB = 0.01

# Rulers of tables and headings are long runs in a sound text.
RUN = re.compile(r"([^\s=_*.#~-])\1+")
REPLACEMENT = "\ufffd"

_miss = partial(miss, NAME, runbook="garbage")


def requests(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    logprobs = {"logprobs": True} if options.get("logprobs", True) else {}
    asked = gates_requests.chat(
        "garbage", name, gates_requests.user(PROMPT), MAX_TOKENS, return_token_ids=True, **logprobs
    )
    yield from gates_requests.both_ways(asked)


def verdicts(wanted: Mapping[str, Any], probe: Mapping[str, Any], log: Sequence[str]) -> Iterator[Verdict]:
    del wanted, log
    for way, name in zip(gates_requests.WAYS, gates_requests.names("garbage"), strict=True):
        message = responses.read(probe["responses"].get(name, {}))
        if message.fault:
            yield _miss(way, message.fault, "a text", "read the log of the engine.")
            continue
        wrong = next(faults(message), "")
        if wrong:
            yield _miss(
                way, f"{wrong}; the text is {core_text.shown(message.content)}", "sound text",
                "the kernels compute wrong numbers: compare the backends in the log with the recipe's log gates.",
            )  # fmt: skip
        else:
            ids = f"{len(message.token_ids)} token ids" if message.token_ids else "no token ids"
            yield Verdict(NAME, way, True, f"{len(message.content)} characters, {ids}")


def faults(message: responses.Message) -> Iterator[str]:
    """What shows that a message is garbage, ids first: they show what a text hides."""
    if message.token_ids:
        yield from _in_ids(message.token_ids)
    if message.logprobs:
        yield from _in_logprobs(message.logprobs)
    yield from _in_text(message.content)
    if not message.token_ids and not message.logprobs:
        yield "the reply has neither token ids nor log-probabilities, which vLLM gives when asked"


def _in_ids(ids: Sequence[int]) -> Iterator[str]:
    unique, zeros = len(set(ids)), ids.count(0)
    if len(ids) >= LEAST_IDS:
        if unique == 1:
            yield f"all {len(ids)} tokens are id {ids[0]}"
        if zeros >= MOST_ID_0_SHARE * len(ids):
            yield f"{zeros} of {len(ids)} tokens are id 0"
    if len(ids) >= LEAST_IDS_FOR_RATIO and unique <= LEAST_UNIQUE_SHARE * len(ids):
        yield f"{len(ids)} tokens are {unique} ids over and over"


def _in_logprobs(logprobs: Sequence[object]) -> Iterator[str]:
    """What is no number there, was NaN or infinite: JSON has no word for them."""
    for value in logprobs:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # NaN compares as False with anything.
        if not number or not LEAST_LOGPROB <= value <= MOST_LOGPROB:  # type: ignore[operator]
            yield f"a log-probability is {core_text.shown(value)}"
            return


def _in_text(text: str) -> Iterator[str]:
    seen = "".join(text.split())
    if not seen:
        yield "the text is empty"
        return
    run = max((match[0] for match in RUN.finditer(text)), key=len, default="")
    if len(run) >= LONGEST_RUN:
        yield f"{run[0]!r} stands {len(run)} times in a row"
    character, times = Counter(seen).most_common(1)[0]
    if len(seen) >= LEAST_CHARACTERS and times >= MOST_ONE_CHARACTER_SHARE * len(seen):
        yield f"{times} of {len(seen)} characters are {character!r}"
    raw = text.encode(errors="replace")
    if len(text) >= LEAST_CHARACTERS_FOR_RATIO and len(raw) / len(zlib.compress(raw)) >= MOST_COMPRESSION:
        yield f"{len(raw)} bytes compress to {len(zlib.compress(raw))}"
    words = text.split()
    if len(words) >= LEAST_WORDS and len(set(words)) <= LEAST_UNIQUE_SHARE * len(words):
        yield f"{len(words)} words are {len(set(words))} words over and over"
    printable = sum(character.isprintable() and character != REPLACEMENT for character in seen)
    if printable <= LEAST_PRINTABLE_SHARE * len(seen):
        yield f"{len(seen) - printable} of {len(seen)} characters cannot be printed"
