"""The names of flags, as one spelling. vLLM takes many: underscores, abbreviations, short names, --no-NAME, and since
0.33 --disable-NAME for --enable-NAME.

Every check reads args in this spelling, so that `max_model_len` and `--max-model-l` are seen as `max-model-len`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.core.fault import Fault
from vllm_spark.core.types import Document
from vllm_spark.recipe import engine_flags, flag_types
from vllm_spark.recipe.engine_flags import Engine, Flag

# Types of flags whose values the plan calculates with.
NUMBERS = ("integer", "size", "size-or-auto")


def canonical(args: Document, engine: Engine) -> dict[str, Any]:
    """Return `args` with the names of the engine. Of two spellings of one flag the later wins (see `repeated`)."""
    return dict(canonical_item(name, value, engine) for name, value in args.items())


def canonical_item(name: str, value: Any, engine: Engine) -> tuple[str, Any]:
    """Return one flag and its value in their one spelling. A name that the engine does not know only loses its leading
    dashes and its underscores."""
    base, dot, key = name.lstrip("-").partition(".")
    base = full_name(base, engine)
    if base not in engine.flags and (value is None or isinstance(value, bool)):
        positive = _opposite(base, engine)
        if positive in engine.flags and engine.flags[positive].kind == "boolean":
            base, value = positive, None if value is None else not value
    if dot:
        return f"{base}.{key}", _json_word(value)
    return base, _number(value, engine.flags.get(base))


def _opposite(name: str, engine: Engine) -> str:
    """Return the name of the flag that `name` switches off, or an empty text."""
    if name.startswith("no-"):
        return full_name(name.removeprefix("no-"), engine)
    return _inverses(engine).get(name, "")


def _inverses(engine: Engine) -> dict[str, str]:
    """Return the name that means the opposite -> the flag."""
    return {described.inverse: flag for flag, described in engine.flags.items() if described.inverse}


def full_name(base: str, engine: Engine) -> str:
    """Return the name of a flag, or of the opposite of one, from a name with underscores, a short name (tp) or an
    abbreviation (max-model-l)."""
    name = base.replace("_", "-")
    if name in engine.flags:
        return name
    for flag, described in engine.flags.items():
        if base in described.aliases or name in described.aliases:
            return flag
    inverses = _inverses(engine)
    if name in inverses:
        return name
    begun = [flag for flag in (*engine.flags, *inverses) if name and flag.startswith(name)]
    return begun[0] if len(begun) == 1 else name


def repeated(args: Document, engine: Engine) -> Iterator[Fault]:
    """Yield a fault for each flag that has two spellings in `args`, or a whole value and one by key (FLAG.KEY)."""
    first: dict[str, str] = {}
    for name in args:
        flag = canonical_item(name, None, engine)[0]
        if flag in first:
            yield Fault(f"args.{first[flag]} and args.{name}: both are --{flag}", "one of them")
        first.setdefault(flag, name)
    for flag, name in first.items():
        whole = flag.partition(".")[0]
        if whole != flag and whole in first:
            yield Fault(f"args.{first[whole]} and args.{name}: the engine reads only one of them", "one map")


def _json_word(value: Any) -> Any:
    """Return the value of FLAG.KEY as the one word that vLLM reads as JSON."""
    return json.dumps(value) if isinstance(value, bool | list) else value


def _number(value: Any, flag: Flag | None) -> Any:
    """Return a whole number for a text that the engine reads as one, because the plan calculates with it."""
    if isinstance(value, str) and flag and flag.type in NUMBERS and flag.nargs is None:
        try:
            return flag_types.TYPES[flag.type](value)
        except ValueError:
            return value
    return value


def engine_of(version: str) -> Engine:
    """Return the engine whose names apply to a version: its own, or the nearest with data."""
    return engine_flags.of_version(version) or engine_flags.nearest(version)


def positive_number(args: Mapping[str, Any], flag: str) -> int | None:
    """Return the value of a flag that counts something, or None if it is not set, or if the engine computes it."""
    value = args.get(flag)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
