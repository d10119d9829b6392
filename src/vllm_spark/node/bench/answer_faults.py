"""Faults of a cell's answers: garbage, wrong counts of tokens, and prompts from the cache.

Garbage is what node.garbage says, as in the gate `garbage`. A gate judges 160 tokens and a cell thousands, so the bench
judges only the first window of an answer: a long text repeats words by nature, and an answer that continues after its
end (`ignore_eos`) often repeats itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from vllm_spark.node import garbage as rules
from vllm_spark.node.bench.fault_registry import kind
from vllm_spark.node.bench.observation import (
    CACHED_TOKENS,
    COUNTER_STEP_TOKENS,
    GENERATED_TOKENS,
    PREFIX_HITS,
    Answer,
    Observation,
)

WINDOW_IDS, WINDOW_CHARACTERS = 256, 1000

# Two blocks of vLLM's cache: the chat template in front of the random prefix fills one at most.
MOST_CACHED_TOKENS = 32


@kind(
    "garbage",
    "The answers are garbage: a NaN in a kernel ends with status 200 and a text of one token.",
    source="the bounds of the gate `garbage`",
)
def garbage(observation: Observation) -> Iterator[str]:
    seen = [fault for fault in map(_garbage, observation.answers) if fault]
    if seen:
        yield f"{len(seen)} of {len(observation.answers)} answers: {seen[0]}"


@kind(
    "repetition",
    f"An answer repeats itself: after its first {WINDOW_IDS} tokens, a window of that size has few different tokens.",
    source="a drafter guesses a repetition better than a text, so the decode speed is too high",
    worthless=False,
)
def repetition(observation: Observation) -> Iterator[str]:
    seen = [answer for answer in observation.answers if not _garbage(answer) and _repeats(answer.token_ids or ())]
    if seen:
        yield f"{len(seen)} of {len(observation.answers)} answers repeat themselves"


@kind(
    "token-accounting",
    "The counts of output tokens differ: token ids, usage and the engine's counter have to agree.",
    source="usage of the OpenAI API, return_token_ids of vLLM, vllm:generation_tokens_total",
)
def token_accounting(observation: Observation) -> Iterator[str]:
    for answer in observation.answers:
        if answer.tokens is None:
            yield "an answer has neither token ids nor usage"
            return
        if answer.completion_tokens is not None and answer.tokens != answer.completion_tokens:
            yield f"an answer has {answer.tokens} token ids, and its usage says {answer.completion_tokens}"
            return
    generated = observation.moved(GENERATED_TOKENS)
    missing = -(observation.others_tokens() or 0.0) if generated is not None and generated >= 0 else 0.0
    if missing > COUNTER_STEP_TOKENS * observation.streams:
        yield f"the answers have {missing:.0f} tokens more than the {generated:.0f} that the engine generated"


@kind(
    "short-output",
    "An answer is shorter than the cell asks for.",
    source="a server that ignores min_tokens and ignore_eos",
    worthless=False,
)
def short_output(observation: Observation) -> Iterator[str]:
    lengths = [answer.tokens for answer in observation.answers if answer.tokens is not None]
    short = [length for length in lengths if length < observation.output]
    if short:
        yield f"{len(short)} of {len(lengths)} answers, the shortest has {min(short)} of {observation.output} tokens"


@kind(
    "cached-prompt",
    f"More than {MOST_CACHED_TOKENS} tokens of a prompt came from the prefix cache: its prefill and its first token "
    "are too fast.",
    source="prompt_tokens_details.cached_tokens of the usage, vllm:prompt_tokens_cached_total",
)
def cached_prompt(observation: Observation) -> Iterator[str]:
    most = max((answer.cached_tokens or 0 for answer in observation.answers), default=0)
    if most > MOST_CACHED_TOKENS:
        yield f"{most} tokens of a prompt were cached"
        return
    counter = CACHED_TOKENS if CACHED_TOKENS in observation.after else PREFIX_HITS
    moved = observation.moved(counter)
    if moved is not None and observation.requests and moved > MOST_CACHED_TOKENS * observation.requests:
        yield f"{moved:.0f} tokens of {observation.requests} prompts were cached ({counter})"


def _garbage(answer: Answer) -> str:
    """Return the first sign of garbage in the first window of an answer, or an empty text."""
    ids, text = answer.token_ids or (), answer.text
    signs = chain(
        (_of_window(sign, len(ids), WINDOW_IDS, "tokens") for sign in rules.in_ids(ids[:WINDOW_IDS])),
        (
            _of_window(sign, len(text), WINDOW_CHARACTERS, "characters")
            for sign in rules.in_text(text[:WINDOW_CHARACTERS])
        ),
    )
    return next(signs, "")


def _of_window(sign: str, length: int, window: int, unit: str) -> str:
    return f"in the first {window} {unit}, {sign}" if length > window else sign


def _repeats(ids: Sequence[int]) -> bool:
    windows = (ids[start : start + WINDOW_IDS] for start in range(WINDOW_IDS, len(ids), WINDOW_IDS))
    return any(map(rules.few_different, windows))
