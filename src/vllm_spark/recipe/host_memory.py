"""Memory of the host that the flags and variables of a recipe take beside the engine's reservation (host_memory.yml).

On a Spark it is the memory of the model. Pure but for that file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from vllm_spark.core import strict_yaml
from vllm_spark.core.engine_version import numbers
from vllm_spark.core.fault import Fault
from vllm_spark.core.types import Document
from vllm_spark.core.units import GIB, MIB
from vllm_spark.recipe import conditions, flag_types

FILE = Path(__file__).with_suffix(".yml")
# The size of /dev/shm without runtime.shm_size. A Spark's memory is one pool, so it is taken from the model's.
DEFAULT_SHM_SIZE = "8g"
UNITS: Mapping[str, float] = {"GiB": GIB, "MiB": MIB, "byte": 1}
UNIT = re.compile(r"(?:(?P<factor>\d+) )?(?P<name>.+)")


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes that one rank takes, and the setting that has or would have the number; empty for none. `stated`: a recipe
    has the setting. The file explains the rest."""

    what: str
    setting: str
    bytes: int
    stated: bool = False
    base: bool = False
    inside: bool = False
    weights: bool = False
    disk: bool = False


@lru_cache
def table() -> Mapping[str, Any]:
    """Return the content of the file."""
    document: Mapping[str, Any] = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
    return document


def utilization(recipe: Document) -> float:
    """Return the share of the memory that the engine asks for: the recipe's, or the default of its version."""
    version = numbers(recipe["engine"]["version"])
    default = [share for since, share in table()["utilization"].items() if numbers(since) <= version][-1]
    return float(recipe["memory"].get("utilization", default))


def taken(recipe: Document, sizes: Mapping[str, float], *, vision: bool) -> list[Taken]:
    """Return what one rank takes. `sizes` are the recipe's own units in bytes, `vision` is a tower that is loaded.

    Rows whose size is not known are in `unknown`.
    """
    ranks = recipe["topology"]["tensor_parallel"]
    found: dict[str, Taken] = {}
    for row in _rows(recipe, vision=vision):
        size, what = _unit({**UNITS, **sizes}, row), row["what"]
        setting, number = _number(recipe, row)
        if size and number:
            flags = {name: row.get(name, False) for name in ("base", "inside", "weights", "disk")}
            part = int(number * size / (ranks if row.get("of") == "server" else 1))
            named = setting or next(iter(row.get("settings", ())), "")
            before = found.get(what, Taken(what, named, 0, bool(setting), **flags))
            found[what] = replace(before, bytes=before.bytes + part)
    return list(found.values())


def unknown(recipe: Document, sizes: Mapping[str, float], *, vision: bool) -> list[str]:
    """Return what a rank takes of an amount that is not known."""
    rows = _rows(recipe, vision=vision)
    return [row["what"] for row in rows if _unit({**UNITS, **sizes}, row) is None and _number(recipe, row)[1]]


def shm_faults(recipe: Document) -> Iterator[Fault]:
    """Yield a fault if /dev/shm of the container does not hold what the flags put there. A server's memory is there
    whole on each Spark (v1/kv_offload/cpu/shared_offload_region.py)."""
    size = recipe.get("runtime", {}).get("shm_size", DEFAULT_SHM_SIZE)
    rows = [row for row in _rows(recipe, vision=True) if _in_shm(row, recipe["engine"]["version"])]
    parts = [(setting, number * (_unit(UNITS, row) or 0)) for row in rows for setting, number in [_number(recipe, row)]]
    needed = math.ceil(sum(part for _, part in parts) / GIB)
    if needed * GIB > flag_types.size(size.upper()):
        names = ", ".join(setting for setting, part in parts if part)
        yield Fault(f"runtime.shm_size: {size}, and {names} takes {needed} GiB of /dev/shm", f"{needed}g or more")


def _in_shm(row: Document, version: str) -> bool:
    since = row.get("shm", False)
    return bool(since) and (since is True or numbers(since) <= numbers(version))


def _rows(recipe: Document, *, vision: bool) -> Iterator[Document]:
    """Yield the rows that apply to a recipe."""
    subject = conditions.Subject(recipe)
    for row in table()["rows"]:
        tower = vision or row.get("only") != "vision"
        if tower and conditions.applies(row.get("when", {}), row.get("unless", ()), subject):
            yield row


def _number(recipe: Document, row: Document) -> tuple[str, float]:
    """Return the setting that has the number of a row, empty for its default, and the number."""
    times = _sum(conditions.values_of(recipe, row["times"])) if "times" in row else 0
    for setting in row.get("settings", ()):
        values = [value for value in conditions.values_of(recipe, setting) if value is not None]
        if values:
            return setting, _sum(values) * (times or 1)
    return "", row.get("default", 0) * (times or 1)


def _sum(values: Sequence[Any]) -> float:
    """Return the sum of numbers. What is none counts as 1: it is set, and the engine's parser judges it."""
    total = 0.0
    for value in values:
        try:
            number = float(flag_types.size(value) if isinstance(value, str) and value[-1:].isalpha() else value)
        except (TypeError, ValueError):
            number = 1.0
        total += number if math.isfinite(number) else 1.0
    return total


def _unit(sizes: Mapping[str, float], row: Document) -> float | None:
    """Return the bytes of a row's unit; None if they are not known."""
    match = UNIT.fullmatch(row["unit"])
    assert match  # noqa: S101  for the type checker: the pattern takes any text
    size = sizes.get(match["name"])
    return None if size is None else size * int(match["factor"] or 1)
