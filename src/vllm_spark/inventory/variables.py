"""Variables of the inventory whose names nothing reads, such as a misspelt `vllm_secret`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vllm_spark.core import near_names, paths

PREFIX = "vllm_"
NAME = re.compile(r"\bvllm_\w+")
# A name that a task sets: the result of a task, or a variable of its own.
SET = re.compile(r"^\s*(?:register: )?(vllm_\w+)(?::|$)", re.MULTILINE)


def known(root: Path = paths.ROOT) -> set[str]:
    """Return every variable that the roles read or set: the names in their defaults and argument specs, and those that
    their tasks register."""
    read = {
        name
        for pattern in ("defaults/*.yml", "meta/argument_specs.yml", "vars/*.yml")
        for file in (root / "roles").glob(f"*/{pattern}")
        for name in NAME.findall(file.read_text(encoding="utf-8"))
    }
    tasks = [*(root / "roles").glob("*/tasks/*.yml"), *(root / "playbooks").glob("*.yml")]
    return read | {name for file in tasks for name in SET.findall(file.read_text(encoding="utf-8"))}


def warnings(variables: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    """Yield a line per variable with the toolkit's prefix that is not one of `names`."""
    names = sorted(names)
    for variable in sorted(set(variables) - set(names)):
        if variable.startswith(PREFIX):
            bare = {name.removeprefix(PREFIX): name for name in names}
            close = near_names.close_names(variable.removeprefix(PREFIX), bare)
            rename = (
                f"rename it to {bare[close[0]]}, or delete it" if close else "delete it, or rename it without vllm_"
            )
            yield f"warning unknown-variable: {variable} is set, and nothing reads it. Fix: {rename}."
