"""The flags of the command of a recipe of sparkrun. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from vllm_spark.core import text
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.types import Document

NOT_SPARKRUN = register("not-a-sparkrun-recipe", runbook="recipe-new")

# A place of a default. A recipe for `str.format` doubles the braces of everything else.
PLACE = re.compile(r"\{\{\s*(\w+)\s*\}\}|\{(\w+)\}")
# What ends a command for a shell, and a number of a stream in front of it (2>&1).
SHELL, STREAM = "|&;<>", re.compile(r"(?<!\S)\d(?=>)")
# -O3, -O=3 and -O 3 are read by the engine before its flags are.
OPTIMIZATION = re.compile(r"-O=?(\w*)")


def flags(document: Document, left_out: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the flags of the command with the defaults in their places, or the defaults if there is no command.

    Names are without the dashes in front. Words that are not flags, and flags whose place has no default, are added to
    `left_out`. Raises RefusedError for a command that cannot be read.
    """
    defaults = {str(key): value for key, value in (document.get("defaults") or {}).items()}
    command = document.get("command")
    if not isinstance(command, str) or not command.strip():
        yield from ((key.replace("_", "-"), value) for key, value in defaults.items())
        return
    words = _words(PLACE.sub(lambda match: str(defaults.get(match[1] or match[2], match[0])), command))
    start = next((index for index, word in enumerate(words) if word == "serve"), None)
    if start is None:
        raise _unreadable("no `vllm serve` in it")
    if start > 1:
        left_out.append(f"before `vllm serve`: {text.one_line(' '.join(words[: start - 1]))}")
    words = words[start + 2 :]
    end = next((index for index, word in enumerate(words) if word and set(word) <= set(SHELL)), len(words))
    if end < len(words):
        left_out.append(f"after the flags: {text.one_line(' '.join(words[end:]))}")
    yield from _pairs(words[:end], left_out)


def _words(command: str) -> list[str]:
    """Return the words as a shell splits them. Operators of the shell are words of their own."""
    lexer = shlex.shlex(STREAM.sub("", command.replace("\\\n", " ")), posix=True, punctuation_chars=SHELL)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError as error:
        raise _unreadable(str(error)) from error


def _pairs(words: list[str], left_out: list[str]) -> Iterator[tuple[str, Any]]:
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        if not word.startswith("-"):
            left_out.append(f"{text.one_line(word)}: not a flag")
            continue
        flag, equals, inline = word.partition("=")
        values = [inline] if equals else []
        if optimization := OPTIMIZATION.fullmatch(word):
            flag, equals = "--optimization-level", optimization[1]
            values = [equals] if equals else []
        while not equals and index < len(words) and not re.match(r"--?[A-Za-z]", words[index]):
            values.append(words[index])
            index += 1
        # Of a template of Jinja, {{ name }} is a part.
        unfilled = [place[0] for value in values if "{%" not in value for place in PLACE.finditer(value)]
        if unfilled:
            left_out.append(f"{flag}: {unfilled[0]} has no default")
            continue
        read = [_value(value) for value in values]
        yield flag.lstrip("-"), True if not read else read[0] if len(read) == 1 else read


def _value(word: str) -> Any:
    """Return a flag's value: a map, a number, or a text."""
    if word.startswith("{{"):
        word = word.replace("{{", "{").replace("}}", "}")
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


def _unreadable(reason: str) -> RefusedError:
    return NOT_SPARKRUN.error(
        what=f"the command cannot be read: {reason}",
        expected="a command `vllm serve MODEL --flag value …`",
        fix="correct `command` of the recipe, or delete it: then the defaults are its flags.",
    )
