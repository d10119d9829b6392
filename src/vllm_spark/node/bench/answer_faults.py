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
    FINISHED,
    GENERATED_TOKENS,
    PREFIX_HITS,
    PROMPT_TOKENS,
    Answer,
    Observation,
)

WINDOW_IDS, WINDOW_CHARACTERS = 256, 1000

# Two blocks of vLLM's cache: the chat template in front of the random prefix fills one at most.
MOST_CACHED_TOKENS = 32
# How far the counts of a prompt may differ: of one text by the place of its parts, of an estimate by the tokenizer.
PROMPT_SHARE, ESTIMATE_SHARE = 0.02, 1.5
# The longest chat template of a user's turn: Mistral's default system prompt has about 500 tokens.
TEMPLATE_TOKENS = 600


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
    "The counts of tokens differ: of the output those of token ids, usage, chunks and the engine's counter have to "
    "agree, of the prompt those of the text, usage and the counter.",
    source="usage of the OpenAI API, return_token_ids and /tokenize of vLLM, vllm:generation_tokens_total, "
    "vllm:prompt_tokens_total",
)
def token_accounting(observation: Observation) -> Iterator[str]:
    differences = chain(
        (text for answer in observation.answers if (text := _output_differs(answer))),
        (text for answer in observation.answers if (text := _prompt_differs(answer, observation))),
    )
    if first := next(differences, ""):
        yield first
        return
    generated = observation.moved(GENERATED_TOKENS)
    missing = -(observation.others_tokens() or 0.0) if generated is not None and generated >= 0 else 0.0
    if missing > COUNTER_STEP_TOKENS * observation.streams:
        yield f"the answers have {missing:.0f} tokens more than the {generated:.0f} that the engine generated"
    read, reported = observation.moved(PROMPT_TOKENS), [answer.prompt_tokens for answer in observation.answers]
    if read is None or None in reported or observation.moved(FINISHED) != len(reported):
        return
    usage = sum(tokens or 0 for tokens in reported)
    if abs(read - usage) > PROMPT_SHARE * usage + COUNTER_STEP_TOKENS * len(reported):
        yield f"the engine read {read:.0f} tokens of {len(reported)} prompts, and their usage says {usage}"


def _output_differs(answer: Answer) -> str:
    """Return how the counts of an answer's output differ, or an empty text."""
    if answer.tokens is None:
        return "an answer has neither token ids nor usage"
    reported, chunks = answer.completion_tokens, answer.chunks
    if reported is not None and answer.tokens != reported:
        return f"an answer has {answer.tokens} token ids, and its usage says {reported}"
    if answer.token_ids is None and reported is not None and chunks is not None and chunks > reported:
        return f"an answer has {chunks} chunks with a text, and its usage says {reported} tokens"
    return ""


def _prompt_differs(answer: Answer, observation: Observation) -> str:
    """Return how the counts of a prompt differ, or an empty text. A chat template adds tokens and removes none."""
    reported, counted = answer.prompt_tokens, answer.prompt_counted
    if reported is None or counted is None:
        return ""
    share = ESTIMATE_SHARE if observation.uncounted else PROMPT_SHARE
    if counted / (1 + share) - 2 <= reported <= counted * (1 + share) + TEMPLATE_TOKENS:
        return ""
    about = "about " if observation.uncounted else ""
    return f"a prompt has {about}{counted} tokens, and its usage says {reported}"


def _lengths(observation: Observation) -> list[int]:
    return [answer.tokens for answer in observation.answers if answer.tokens is not None]


@kind(
    "short-output",
    "An answer is shorter than the cell asks for.",
    source="a server that ignores min_tokens and ignore_eos",
    worthless=False,
)
def short_output(observation: Observation) -> Iterator[str]:
    lengths = _lengths(observation)
    short = [length for length in lengths if length < observation.output]
    if short:
        yield f"{len(short)} of {len(lengths)} answers, the shortest has {min(short)} of {observation.output} tokens"


@kind(
    "long-output",
    "An answer is longer than the cell asks for.",
    source="a server that ignores max_tokens",
    worthless=False,
)
def long_output(observation: Observation) -> Iterator[str]:
    lengths = _lengths(observation)
    long = [length for length in lengths if length > observation.output]
    if long:
        yield f"{len(long)} of {len(lengths)} answers, the longest has {max(long)} of {observation.output} tokens"


@kind(
    "estimated-tokens",
    "The server sends no token ids and fewer chunks than tokens, so nobody knows how many tokens a chunk has. The cell "
    "has no decode, or a bound beside it if few tokens have no chunk; no first token if the reasoning is hidden.",
    source="a drafter or --stream-interval behind a gateway that drops token ids: the first chunk with 16 tokens bent "
    "decode by 31 %; bytes of a character that llama-server and SGLang hold back: 0 to 3 %",
    worthless=False,
)
def estimated_tokens(observation: Observation) -> Iterator[str]:
    seen = sorted((answer for answer in observation.answers if answer.unseen), key=lambda answer: -answer.unseen)
    if seen:
        first = seen[0]
        few = f"{first.chunks} chunks have {first.tokens} tokens in {len(seen)} of {len(observation.answers)} answers"
        bound = f"decode is up to {first.unseen / (first.chunks or 1):.1%} too low".replace("%", " %")
        yield f"{'no decode' if any(answer.estimated for answer in seen) else bound}: {few}, and no token ids"


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
