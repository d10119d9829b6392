"""The flags and variables that a version of vLLM knows, from recipes/engines/VERSION.json.

`make engine-flags` writes the files from the engine's own parser, and `make engine` compares them with it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NoReturn

from vllm_spark.core import paths
from vllm_spark.core.engine_version import numbers
from vllm_spark.recipe import flag_types

FOLDER = paths.RECIPES / "engines"

# boolean: --flag and --no-flag. switch: --flag alone. values: the flag takes words.
Kind = Literal["boolean", "switch", "values"]


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `type` is a name of flag_types.TYPES.

    - `nargs`: of argparse; None for one word
    - `choices`: the values that its type may yield
    - `later`: the texts that the engine accepts after its parser has accepted any
    - `keys`: of a flag whose JSON has known keys: key -> the strings that it accepts, or None for any string
    - `inverse`: the name that means the opposite, as disable-log-requests of enable-log-requests (0.33 and later)
    """

    kind: Kind = "values"
    type: str = "text"
    optional: bool = False
    nargs: str | int | None = None
    choices: Sequence[Any] | None = None
    later: Sequence[str] = ()
    keys: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    aliases: Sequence[str] = ()
    inverse: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """One VLLM_* variable. `type` is empty if its reader takes any text or another type than those of flags. `unread`:
    no file of the engine reads it."""

    type: str = ""
    choices: Sequence[str] = ()
    unread: bool = False


@dataclass(frozen=True)
class Engine:
    """The arguments that one version knows. The names of `flags` have no dashes in front."""

    version: str
    flags: Mapping[str, Flag]
    variables: Mapping[str, Variable]
    drafter_keys: Sequence[str]


class RefusingParser(argparse.ArgumentParser):
    """A parser that raises ValueError instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@lru_cache
def versions(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the versions with data, the oldest first."""
    return tuple(sorted((file.stem for file in folder.glob("*.json")), key=numbers))


@lru_cache
def load(version: str, folder: Path = FOLDER) -> Engine:
    """Read the file of a version."""
    document = json.loads((folder / f"{version}.json").read_text(encoding="utf-8"))
    return Engine(
        version=document["version"],
        flags={name: Flag(**described) for name, described in document["flags"].items()},
        variables={name: Variable(**described) for name, described in document["variables"].items()},
        drafter_keys=document["drafter_keys"],
    )


def of_version(version: str) -> Engine | None:
    """Return the data for a recipe's version, or None. A build (0.19.1.dev6) has the data of its release."""
    numbers = re.match(r"\d+\.\d+\.\d+", version)
    return load(numbers[0]) if numbers and numbers[0] in versions() else None


def nearest(version: str) -> Engine:
    """Return the data of a version, or those of the newest version before it, or the oldest."""
    known = versions()
    older = [each for each in known if numbers(each) <= numbers(version)]
    return load(older[-1] if older else known[0])


@lru_cache
def parser(version: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of a version that has data. It raises ValueError for words that it refuses."""
    # A flag is complete here: recipe.flag_names has completed abbreviations.
    result = RefusingParser(prog="vllm serve", add_help=False, allow_abbrev=False)
    for name, flag in load(version).flags.items():
        if flag.kind == "boolean":
            result.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
        elif flag.kind == "switch":
            result.add_argument(f"--{name}", action="store_true")
        else:
            read = flag_types.TYPES[flag.type]
            word_type = flag_types.optional(read) if flag.optional else read
            result.add_argument(f"--{name}", type=word_type, nargs=flag.nargs, choices=flag.choices)
    return result
