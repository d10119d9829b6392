"""Flags with right, wrong and misspelt names and values, drawn from a seed.

Flags that a recipe may not set are left out. recipes/engines is the source of the names; whether the engine takes the
words is what the test asks it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from vllm_spark.recipe import rules
from vllm_spark.recipe.engine_flags import Engine, Flag

# A value that contains another flag.
HIDDEN_FLAG = ["--api-key", "x"]
# Values of every kind that a YAML file can hold; none belongs to a flag.
VALUES: Sequence[Any] = (
    True, False, 0, 1, 3, -1, -7, 4096, 0.5, -0.5, 1e30, "", "1", "7.5", "many", "None", "none", "auto", "AUTO",
    "float13", "bfloat16", "4k", "4K", "1.5k", "1.5K", "-1", "-x", "--port", "a b", "true", "True", "{}", '{"a": 1}',
    "{a}", "[1]", "null", "inf", "nan", "0x10", "1_000", " 7 ", "é", ["a"], ["a", "b"], [1, 2], HIDDEN_FLAG,
    {}, {"a": 1}, {"level": 3}, {"image": 4}, {"mode": 3}, {"cudagraph_mode": "PIECEWISE"}, {"backend": "no-such"},
)  # fmt: skip
TYPOS = ("drop", "double", "swap", "add")


def drawn(engine: Engine, count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """Yield flags with values. Equal arguments yield the same."""
    source = random.Random(f"{seed} {engine.version}")  # noqa: S311  a sample needs no secrecy
    names = sorted(engine.flags.keys() - rules.PLANNED_FLAGS.keys())
    for _ in range(count):
        name = source.choice(names)
        yield from _variant(source, name, engine.flags[name])


def _variant(source: random.Random, name: str, flag: Flag) -> Iterator[tuple[str, Any]]:
    match source.randrange(6):
        case 0:
            yield misspelt(source, name), right_value(source, flag)
        case 1:
            yield name[: source.randint(3, len(name))], right_value(source, flag)
        case 2:
            yield name.replace("-", "_"), right_value(source, flag)
        case 3 if flag.keys:
            key = source.choice(sorted(flag.keys))
            yield name, {source.choice((key, misspelt(source, key))): source.choice(VALUES)}
        case 4 if flag.choices or flag.later:
            word = str(source.choice([*(flag.choices or ()), *flag.later]))
            yield name, source.choice((word, misspelt(source, word), word.upper()))
        case _:
            yield name, source.choice(VALUES)


def misspelt(source: random.Random, word: str) -> str:
    """Return a word with one typing error."""
    place = source.randrange(len(word))
    match source.choice(TYPOS):
        case "drop":
            return word[:place] + word[place + 1 :]
        case "double":
            return word[:place] + word[place] + word[place:]
        case "swap":
            return word[: place - 1] + word[place : place + 1] + word[place - 1 : place] + word[place + 1 :]
        case _:
            return f"{word}s"


def right_value(source: random.Random, flag: Flag) -> Any:
    """Return a value that the flag's data accept."""
    if flag.kind != "values":
        return True
    if flag.choices or flag.later:
        return source.choice([*(flag.choices or flag.later)])
    samples = {"integer": 2, "size": 4096, "size-or-auto": "4k", "number": 0.5, "json": {}, "object": {}}
    return samples.get(flag.type, "text")
