"""The owners of the environment variables of the engine's container, from recipes/variables.yml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from vllm_spark.core import documents, paths
from vllm_spark.core.fault import Fault
from vllm_spark.node.secret_names import has_form, is_secret

FILE = paths.RECIPES / "variables.yml"


@dataclass(frozen=True, slots=True)
class VariableOwner:
    """One entry of the file, which explains the fields."""

    owner: str  # toolkit, image, engine or user
    why: str
    source: str
    names: tuple[str, ...] = ()


UNLISTED = VariableOwner("user", "", "")


@lru_cache
def entries() -> tuple[VariableOwner, ...]:
    """Return the entries in the file's order."""
    listed = documents.read_yaml(FILE)["variables"]
    return tuple(VariableOwner(**{**entry, "names": tuple(entry["names"])}) for entry in listed)


@lru_cache
def _exact() -> Mapping[str, VariableOwner]:
    return {name: entry for entry in entries() for name in entry.names if "*" not in name}


def of(name: str) -> VariableOwner:
    """Return the entry of a variable: of its exact name, else of the first pattern that it matches."""
    if name in _exact():
        return _exact()[name]
    return next((entry for entry in entries() if any(fnmatchcase(name, one) for one in entry.names)), UNLISTED)


def fault(name: str, value: str | None = None) -> Fault | None:
    """Return why a recipe or a deployment's overrides may not set a variable; None if they may. `value`: None if it is
    not known."""
    if is_secret(name, value):
        return Fault(f"env.{name}: a secret", "in vllm_secrets of the inventory")
    entry = of(name)
    if entry.owner in ("toolkit", "image"):
        return Fault(f"env.{name}: set, which is the {entry.owner}'s", f"no such line, because {entry.why}")
    return None


def faults(names: Mapping[str, object]) -> Iterator[Fault]:
    """Yield the faults of the variables of `env`, sorted by name. A null removes a variable, except of a secret."""
    for name, value in sorted(names.items()):
        found = fault(name, value if isinstance(value, str) else None)
        if found and (value is not None or is_secret(name)):
            yield found
        elif isinstance(value, str) and has_form(value):
            yield Fault(f"env.{name}: a value with a secret in it", "in vllm_secrets of the inventory")


def image_pattern() -> str:
    """Return a regular expression for the names of variables that images set for themselves."""
    names = (name for entry in entries() if entry.owner == "image" for name in entry.names)
    return "|".join(re.escape(name).replace(r"\*", r"\w*") for name in names)
