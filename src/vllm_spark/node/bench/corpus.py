"""Prompts of a wanted number of tokens, drawn from the corpora by seed.

    PREFIX    16 random tokens; a cached prompt ends where it begins to differ, so nothing behind them is cached
    NOTES     paragraphs of the corpus `long`, cut to the number of tokens; the depth of a cell is a part of them
    QUESTION  of the cell's corpus

All of it is one turn of the user.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TypedDict

from vllm_spark.node.bench import corpora

# Returns the number of tokens of a text: of the server's /tokenize, or of an estimate.
CountTokens = Callable[[str], int]

PREFIX_TOKENS = 16
LEAST_PREFIX_WORDS = 4
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
# A text may miss the wanted number by this share, and by one token.
TOLERANCE = 0.002
MOST_TRIES = 12
# Enough of a text to know how many tokens its characters have.
SAMPLE_CHARACTERS = 2000
CHARACTERS_PER_TOKEN = 4.4


class Message(TypedDict):
    """A message of the chat API."""

    role: str
    content: str


def prompt(  # noqa: PLR0913, PLR0917  the coordinates of a prompt
    corpus: str, seed: int, index: int, tokens: int, depth: int, count_tokens: CountTokens, salt: str = ""
) -> list[Message]:
    """Return the messages of a prompt with `tokens` + `depth` tokens, without those of the chat template.

    The same (corpus, seed, index) asks the same question about the same notes. `salt` changes the prefix only: give
    every run another one, because a server that was not restarted has the prompts of the run before in its cache. A
    prompt is never shorter than its prefix and its question.
    """
    chance = random.Random(f"{seed}/{index}")  # noqa: S311  not a secret
    questions = corpora.questions(corpus)
    first = random.Random(seed).randrange(len(questions))  # noqa: S311
    question = questions[(first + index) % len(questions)]
    start = prefix(f"{seed}/{index}/{salt}", count_tokens)
    content = _cut(start, question, chance, tokens + depth, count_tokens)
    return [{"role": "user", "content": content}]


def prefix(seed: str, count_tokens: CountTokens) -> str:
    """Return random words of at least PREFIX_TOKENS tokens."""
    chance = random.Random(f"prefix/{seed}")  # noqa: S311
    words = [_word(chance) for _ in range(LEAST_PREFIX_WORDS)]
    while (tokens := count_tokens(" ".join(words))) < PREFIX_TOKENS:
        missing = math.ceil((PREFIX_TOKENS - tokens) * len(words) / max(1, tokens))
        words += [_word(chance) for _ in range(missing)]
    return " ".join(words)


def estimate(text: str, characters_per_token: float = CHARACTERS_PER_TOKEN) -> int:
    """Return about the number of tokens of a text, for a server without /tokenize."""
    return max(1, round(len(text) / characters_per_token))


def _word(chance: random.Random) -> str:
    return "".join(chance.choices(SYLLABLES, k=3))


def _cut(start: str, question: str, chance: random.Random, tokens: int, count_tokens: CountTokens) -> str:
    """Return the prompt whose notes have as many characters as the wanted number of tokens needs.

    The length is corrected by the tokens that are missing, so a few counts are enough for any tokenizer.
    """
    best = f"{start}\n\n{question}"
    least_missed = tokens - count_tokens(best)
    if least_missed <= 0:
        return best
    notes = _Notes(chance)
    per_character = count_tokens(notes.text(SAMPLE_CHARACTERS)) / SAMPLE_CHARACTERS
    length, tried = round(least_missed / per_character), {0}
    while length not in tried and length > 0 and len(tried) < MOST_TRIES:
        tried.add(length)
        text = f"{start}\n\n{notes.text(length)}\n\n{question}"
        missing = tokens - count_tokens(text)
        if abs(missing) < least_missed:
            best, least_missed = text, abs(missing)
        if abs(missing) <= max(1, TOLERANCE * tokens):
            break
        length += round(missing / per_character)
    return best


class _Notes:
    """The paragraphs of one prompt. They are drawn when they are needed, in the same order for each length."""

    def __init__(self, chance: random.Random) -> None:
        self._paragraphs = corpora.paragraphs(chance)
        self._text = ""

    def text(self, length: int) -> str:
        """Return the first characters of the notes."""
        while len(self._text) < length:
            self._text += f"{next(self._paragraphs)}\n\n"
        return self._text[:length].rstrip()
