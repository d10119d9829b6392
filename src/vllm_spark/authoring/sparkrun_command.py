"""The flags of the command of a recipe of sparkrun. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from vllm_spark.core import text
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document

NOT_SPARKRUN = register("not-a-sparkrun-recipe", runbook="recipe-new")

PLACE = re.compile(r"\{(\w+)\}")
# Short flags of `vllm serve`.
SHORT = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size"}


def flags(document: Document, left_out: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the flags of the command with the defaults in their places, or the defaults if there is no command.

    Words that are not flags are added to `left_out`. Raises RefusedError for a command that cannot be read.
    """
    defaults = {str(key): value for key, value in (document.get("defaults") or {}).items()}
    command = document.get("command")
    if not isinstance(command, str) or not command.strip():
        yield from ((key.replace("_", "-"), value) for key, value in defaults.items())
        return
    filled = PLACE.sub(lambda match: str(defaults.get(match[1], match[0])), command)
    try:
        words = shlex.split(filled.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise RefusedError([_unreadable(str(error))]) from error
    start = next((index for index, word in enumerate(words) if word == "serve"), None)
    if start is None:
        raise RefusedError([_unreadable("no `vllm serve` in it")])
    if start > 1:
        left_out.append(f"before `vllm serve`: {text.one_line(' '.join(words[: start - 1]))}")
    yield from _pairs(words[start + 2 :], left_out)


def _pairs(words: list[str], left_out: list[str]) -> Iterator[tuple[str, Any]]:
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        if not word.startswith("-"):
            left_out.append(f"{text.one_line(word)}: not a flag")
            continue
        flag, equals, inline = word.partition("=")
        flag = SHORT.get(flag, flag.lstrip("-").replace("_", "-"))
        if equals:
            yield flag, _value(inline)
            continue
        values = []
        while index < len(words) and not re.match(r"--?[A-Za-z]", words[index]):
            values.append(_value(words[index]))
            index += 1
        yield flag, True if not values else values[0] if len(values) == 1 else values


def _value(word: str) -> Any:
    """Return a flag's value: a map, a number, or a text."""
    if word.startswith("{"):
        try:
            found = json.loads(word)
        except ValueError:
            return word
        return found if isinstance(found, dict) else word
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _unreadable(reason: str) -> Refusal:
    return NOT_SPARKRUN(
        what=f"the command cannot be read: {reason}",
        expected="a command `vllm serve MODEL --flag value …`",
        fix="correct `command` of the recipe, or delete it: then the defaults are its flags.",
    )
