"""Values of a recipe that `vllm-spark check` or a known issue refuses: left out one by one, each with its reason. Pure.

What is refused elsewhere in the recipe cannot be left out. It refuses the whole recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_spark.core.fault import Fault
from vllm_spark.recipe import conditions, engine_arguments, flag_names, known_issues, loader

# Blocks of a recipe whose entries the engine has defaults for, and how an import names an entry.
BLOCKS = {"args": "--", "env": "env."}


def leave_out(recipe: dict[str, Any], folder: Path) -> tuple[list[str], list[Fault]]:
    """Remove every refused value of `args`, `env` and the drafter.

    Returns a line for each, and the faults that remain. `folder` is where the recipe will be.
    """
    lines: list[str] = []
    while True:
        found = list(faults(recipe, folder))
        removed = [line for fault in found if (line := _without(recipe, fault))]
        lines += removed
        if not removed:
            return lines, found


def faults(recipe: dict[str, Any], folder: Path) -> Iterator[Fault]:
    """Yield what `check` refuses in a recipe that is not yet a file, and the settings that a known issue refuses."""
    loaded, found = loader.checked(recipe, folder, recipe["name"])
    yield from found
    if found:
        return
    for issue in known_issues.matching_issues(known_issues.of_closed(loaded.document)):
        # A removed variable is also unknown to the engine, but the issue tells what replaces it.
        settings = [
            f"{block}.{name}"
            for block in BLOCKS
            for name in issue.when.get(block, {})
            if name in loaded.document.get(block, {})
        ] or conditions.settings_in(loaded.document, issue.when.get("settings", {}))
        if issue.level == "refuse" and settings:
            yield Fault(f"{settings[0]}: {issue.what}", issue.instead)
    yield from engine_arguments.faults(loaded.document, flag_names.engine_of(recipe["engine"]["version"]))


def _without(recipe: dict[str, Any], fault: Fault) -> str:
    """Remove the value that a fault names. Returns the line that says so, or an empty text if it is not removable."""
    path, _, what = fault.what.partition(": ")
    block, _, name = path.partition(".")
    if block == "drafter" and block in recipe:
        return _without_drafter(recipe, name, fault)
    entries = recipe.get(block)
    if block not in BLOCKS or not isinstance(entries, dict):
        return ""
    for key in [key for key in entries if key == name or key.startswith(f"{name}.")] or _holders(entries, name):
        del entries[key]
        # The path of a fault inside of a map says which of its keys is meant.
        inside = f"{name.removeprefix(key)[1:]}: " if name.startswith(f"{key}.") else ""
        if not entries and block == "env":
            del recipe[block]
        return f"{BLOCKS[block]}{key}: {inside}{what}; expected: {fault.expected}"
    return ""


def _holders(entries: dict[str, Any], name: str) -> list[str]:
    """Return the entry that holds the key of a path."""
    return [key for key in entries if name.startswith((f"{key}.", f"{key}["))]


def _without_drafter(recipe: dict[str, Any], name: str, fault: Fault) -> str:
    """Remove a key of the drafter's configuration, or the drafter if another of its fields is refused."""
    config, key = recipe["drafter"].get("config", {}), name.removeprefix("config.")
    if name.startswith("config.") and key in config:
        del config[key]
        if not config:
            del recipe["drafter"]["config"]
    else:
        del recipe["drafter"]
    return f"{fault.what}; expected: {fault.expected}"
