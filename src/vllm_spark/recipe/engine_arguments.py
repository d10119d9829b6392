"""Flags, values and variables that the engine of a recipe would refuse or ignore, found before a download."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.core import near_names
from vllm_spark.core.fault import Fault
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import engine_flags, flag_types, published_image, variable_owners
from vllm_spark.recipe.engine_flags import Engine, Flag, Variable
from vllm_spark.recipe.flag_argv import flag_argv

ENGINE_ARGUMENTS = register("engine-arguments", runbook="engine-arguments")

# Flags that name a file with more parsers -> the flag whose known names it extends.
PLUGINS = {"tool-parser-plugin": "tool-call-parser", "reasoning-parser-plugin": "reasoning-parser"}

# A message lists so many names and no more.
LISTED = 60

# Strings that the engine reads as a boolean, where it does not expect a string.
BOOLEAN_WORDS = {"0", "1", "f", "false", "n", "no", "off", "on", "t", "true", "y", "yes"}


def refusals(recipe: Document, accepted: Collection[str]) -> Iterator[Refusal]:
    """Yield a refusal per flag, value and variable of a recipe that its engine refuses or ignores.

    Yields nothing for a version without data, and nothing if `accepted` has the id."""
    engine = engine_flags.of_version(recipe["engine"]["version"])
    if engine is None or ENGINE_ARGUMENTS.id in accepted:
        return
    for fault in faults(recipe, engine):
        block = fault.what.partition(".")[0]
        yield ENGINE_ARGUMENTS(
            what=f"recipe {recipe['name']} with vLLM {recipe['engine']['version']}: {fault.what}",
            expected=fault.expected,
            fix=f"correct {'the drafter' if block == 'drafter' else block} of the recipe, or overrides.{block} of the "
            f"deployment. To deploy it anyway: -e accept_known_issue={ENGINE_ARGUMENTS.id}.",
        )


def notes(recipe: Document, accepted: Collection[str]) -> Iterator[str]:
    """Yield a line if the flags are not checked, and one per accepted fault."""
    version = recipe["engine"]["version"]
    engine = engine_flags.of_version(version)
    if engine is None:
        known = ", ".join(engine_flags.versions())
        yield f"flags and variables are not checked: no data for vLLM {version}, only for {known}"
    elif ENGINE_ARGUMENTS.id in accepted:
        yield from (f"accepted {ENGINE_ARGUMENTS.id}: {fault.what}" for fault in faults(recipe, engine))


def faults(recipe: Document, engine: Engine) -> Iterator[Fault]:
    """Yield every fault of `args`, `env` and the drafter's configuration. The names of `args` are canonical."""
    args = recipe["args"]
    extended = {PLUGINS[name] for name in PLUGINS.keys() & args.keys()}
    own = recipe["image"].get("published", {}).get("flags", ())
    # Such an image may bring a loader of its own.
    extended |= {"load-format"} if published_image.is_published(recipe) else set()
    for name, value in args.items():
        if "." not in name and name not in own:
            yield from flag_faults(name, value, engine, check_later=name not in extended)
    for name, value in joined(args).items():
        yield from flag_faults(name, value, engine)
    for name in recipe.get("drafter", {}).get("config", {}):
        if name.replace("-", "_") not in engine.drafter_keys:
            yield Fault(f"drafter.config.{name}: unknown", meant(name, engine.drafter_keys))
    for name, value in recipe.get("env", {}).items():
        # The engine of such an image may have variables that no release has.
        if name in engine.variables or not published_image.is_published(recipe):
            yield from variable_faults(name, value, engine)


def flag_faults(name: str, value: object, engine: Engine, *, check_later: bool = True) -> Iterator[Fault]:
    """Yield the fault of one flag, if the engine refuses it."""
    flag = engine.flags.get(name)
    if flag is None:
        yield Fault(f"args.{name}: unknown flag", meant(name, engine.flags))
        return
    words = flag_argv(name, value)
    if any(map(_is_flag, words[1:])):
        yield Fault(f"args.{name}: {' '.join(words[1:])}", "no dash in front, because the engine takes it for a flag")
        return
    try:
        engine_flags.parser(engine.version).parse_args(words)
    except ValueError:
        yield Fault(f"args.{name}: {json.dumps(value, default=str)}", _expected(flag))
        return
    if flag.keys and (document := _object(words, flag)) is not None:
        yield from _key_faults(name, document, flag.keys)
    if flag.later and check_later and words[-1] not in (*flag.later, "", *(["None"] if flag.optional else [])):
        yield Fault(f"args.{name}: {words[-1]}", meant(words[-1], flag.later))


def variable_faults(name: str, value: str, engine: Engine) -> Iterator[Fault]:
    """Yield the fault of one variable, if it is the engine's. The engine ignores an unknown one with a warning."""
    if variable_owners.of(name).owner != "engine":
        return
    variable = engine.variables.get(name)
    if variable is None:
        yield Fault(f"env.{name}: unknown variable, which the engine ignores", meant(name, engine.variables))
    elif variable.unread:
        yield Fault(f"env.{name}: no file of this version reads it", "a variable or a flag with an effect")
    elif not _variable_takes(variable, value):
        expected = f"one of {', '.join(variable.choices)}" if variable.choices else _description(variable.type)
        yield Fault(f"env.{name}: {value}", expected)


def _variable_takes(variable: Variable, value: str) -> bool:
    if variable.choices:
        # Some variables take a list; the engine compares some without regard to case.
        known = {choice.lower() for choice in variable.choices}
        return {word.strip().lower() for word in value.split(",")} <= {*known, ""}
    if not variable.type or not value:
        return True
    try:
        flag_types.TYPES[variable.type](value)
    except ValueError:
        return False
    return True


def _is_flag(word: str) -> bool:
    """Return True if vLLM's parser takes a value for a flag: a dash in front, and not a whole number or a sentence.

    With a dot in it, it takes even a number for --FLAG.KEY."""
    if not word.startswith("-") or word == "-":
        return False
    return "." in word or "=" in word or not (" " in word or re.fullmatch(r"-\d+", word))


def joined(args: Document) -> dict[str, Any]:
    """Return the maps that the engine makes of FLAG.KEY.KEY, by flag."""
    maps: dict[str, Any] = {}
    for name, value in args.items():
        base, *keys = name.split(".")
        if keys:
            place = maps.setdefault(base, {})
            for key in keys[:-1]:
                place = place.setdefault(key, {})
                if not isinstance(place, dict):
                    break
            else:
                # KEY+ adds to a list.
                place[keys[-1].removesuffix("+")] = _json_value(value) if not keys[-1].endswith("+") else [value]
    return maps


def _json_value(value: Any) -> Any:
    """Return a value of FLAG.KEY as the engine reads it: JSON, a size, or a text."""
    if not isinstance(value, str):
        return value
    for read in (json.loads, flag_types.size):
        try:
            return read(value)
        except ValueError:
            continue
    return value


def _object(words: Sequence[str], flag: Flag) -> Mapping[str, Any] | None:
    """Return the map of a flag, or None for an optional one that is empty."""
    if flag.optional and words[-1] in ("", "None"):
        return None
    return flag_types.json_object(words[-1])


def _key_faults(name: str, document: Mapping[str, Any], keys: Mapping[str, Sequence[str] | None]) -> Iterator[Fault]:
    for key, value in document.items():
        if key not in keys:
            yield Fault(f"args.{name}.{key}: unknown key", meant(key, keys))
            continue
        named = keys[key]
        if named is None or not isinstance(value, str) or _reads_as_scalar(value):
            continue
        if value.lower() not in map(str.lower, named):
            expected = f"one of {', '.join(named)}" if named else "a value that is not a text"
            yield Fault(f"args.{name}.{key}: {value}", expected)


def _reads_as_scalar(text: str) -> bool:
    """Return True for a text that the engine may read as a number or a boolean."""
    return text.lower() in BOOLEAN_WORDS or bool(re.fullmatch(r"\s*[-+]?[\d._]+(e[-+]?\d+)?\s*", text, re.IGNORECASE))


def meant(name: str, known: Collection[str]) -> str:
    """Return the known name that was meant, or in how many names it is not."""
    listed = ", ".join(known) if len(known) <= LISTED else f"the {len(known)} that this version knows"
    return near_names.meant(name, known) or f"one of {listed}"


def _expected(flag: Flag) -> str:
    if flag.kind == "boolean":
        return "true or false"
    if flag.kind == "switch":
        return "true, or no such line"
    text = f"one of {', '.join(map(str, flag.choices))}" if flag.choices else _description(flag.type)
    return f"a list; each {text}" if flag.nargs in ("+", "*") or isinstance(flag.nargs, int) else text


def _description(type_: str) -> str:
    return flag_types.DESCRIPTIONS.get(type_, "a value that the engine takes")
