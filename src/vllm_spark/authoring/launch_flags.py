"""The flags in the words behind `vllm serve`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from vllm_spark.authoring.launch_file import PLACE
from vllm_spark.authoring.shell import UNKNOWN
from vllm_spark.core import text
from vllm_spark.recipe import flag_names
from vllm_spark.recipe.engine_flags import Engine

# -O3, -O=3 and -O 3 are read by the engine before its flags are.
OPTIMIZATION = re.compile(r"^-O(?:=?(\w+))?$")
# What a reader of the file has to fill in: <interface>.
BLANK = re.compile(r"<[\w][^<>]*>")


def unknown(value: str) -> str:
    """Return why a value is not known: an open place, or what only a run tells. Empty if it is known."""
    # {{ name }} is a part of a template of Jinja.
    place = None if "{%" in value else PLACE.search(value) or BLANK.search(value)
    if UNKNOWN in value:
        return f"{text.one_line(value.replace(UNKNOWN, '$'))} has no value in the file"
    return f"{place[0]} has no default" if place else ""


def parted(words: Sequence[str], engine: Engine, left_out: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the model, if a word without a flag names it, and the flags, without the dashes in front.

    Words that are no flags, and flags whose value is not known, are added to `left_out`.
    """
    model = ""
    flags: dict[str, Any] = {}
    for flag, values in _grouped(words, engine):
        if not flag and not model:
            model = values[0]
        elif reason := next(
            filter(None, map(unknown, values)), "" if flag else f"{text.one_line(values[0])}: not a flag"
        ):
            left_out.append(f"{flag}: {reason}" if flag else reason)
        else:
            read = [_value(value) for value in values]
            flags[flag.lstrip("-")] = True if not read else read[0] if len(read) == 1 else read
    return model, flags


def _grouped(words: Sequence[str], engine: Engine) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with its values, and each other word with an empty flag."""
    index = 0
    while index < len(words):
        word, index = _long(words[index]), index + 1
        if not word.startswith("-"):
            yield "", [word]
            continue
        flag, equals, inline = word.partition("=")
        values = [inline] if equals else []
        most = 0 if equals else _most(flag, engine)
        while len(values) < most and index < len(words) and not re.match(r"--?[A-Za-z]", words[index]):
            values.append(words[index])
            index += 1
        yield flag, values


def _long(word: str) -> str:
    found = OPTIMIZATION.match(word)
    return word if found is None else f"--optimization-level={found[1]}" if found[1] else "--optimization-level"


def _most(flag: str, engine: Engine) -> int:
    """Return how many words the engine takes for a flag at most. Of a flag that it does not have nobody knows."""
    known = engine.flags.get(flag_names.full_name(flag.lstrip("-").partition(".")[0].removeprefix("no-"), engine))
    if known is None or "." in flag:
        return 99 if known is None else 1
    return 0 if known.kind != "values" else 1 if known.nargs is None else 99


def _value(word: str) -> Any:
    """Return a flag's value: a map, a number, or a text."""
    if word[:1] not in {*"{-.0123456789"}:
        return word
    try:
        found = json.loads(word.replace("{{", "{").replace("}}", "}") if word.startswith("{{") else word)
    except ValueError:
        return word
    return found if isinstance(found, dict | int | float) else word
