"""The texts of the prompts: corpora/*.txt, one question, task or paragraph per line. They are the toolkit's own words.

A paragraph of `long` has slots, so that it can be drawn several times without a long identical span: `{20-90}` is a
number, `{town}` a value of corpora/slots.json. `{town}` is the same in a whole paragraph, and `{town2}` another value.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).with_name("corpora")
CLASSES = ("chat", "code", "json", "long")
# What is asked for behind the paragraphs of `long`, which has no questions of its own.
LONG_TASKS = (
    "Summarise the notes above at length, subject by subject, in your own words.",
    "Continue the notes above with as many further paragraphs of the same kind as you can.",
    "Explain in a long essay what the subjects of the notes above have in common, and where they differ.",
    "Rewrite the notes above as a long letter to a friend who knows none of these trades.",
    "Write a long, critical review of the notes above, with a judgement on each paragraph.",
)
SLOT = re.compile(r"\{(?:(\d+)-(\d+)|([a-z]+)(\d?))\}")
DIGITS = 12


@cache
def lines(corpus: str) -> tuple[str, ...]:
    """Return the questions of a class, or the paragraphs of `long`."""
    text = (FOLDER / f"{corpus}.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line)


def questions(corpus: str) -> tuple[str, ...]:
    """Return what the prompts of a class ask for."""
    return LONG_TASKS if corpus == "long" else lines(corpus)


@cache
def slots() -> dict[str, list[str]]:
    """Return the values of the slots by name."""
    values: dict[str, list[str]] = json.loads((FOLDER / "slots.json").read_text(encoding="utf-8"))
    return values


def filled(paragraph: str, chance: random.Random) -> str:
    """Return a paragraph with a value in each slot."""
    orders: dict[str, list[str]] = {}

    def value(match: re.Match[str]) -> str:
        low, high, name, number = match.groups()
        if low:
            return str(chance.randint(int(low), int(high)))
        if name not in orders:
            orders[name] = chance.sample(slots()[name], len(slots()[name]))
        return orders[name][int(number or 1) - 1]

    return SLOT.sub(value, paragraph)


def paragraphs(chance: random.Random) -> Iterator[str]:
    """Yield paragraphs without end: all of them in a random order, then all in another order with other values."""
    while True:
        for paragraph in chance.sample(lines("long"), len(lines("long"))):
            yield filled(paragraph, chance)


@cache
def sha256() -> str:
    """Return the first digits of the hash of all texts and of the code that reads them. It is a part of the protocol's
    id: a change of a text changes what is measured."""
    digest = hashlib.sha256()
    code = [Path(__file__), Path(__file__).with_name("corpus.py")]
    for file in [*sorted(FOLDER.iterdir()), *code]:
        digest.update(f"{file.name}\0{len(file.read_bytes())}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:DIGITS]
