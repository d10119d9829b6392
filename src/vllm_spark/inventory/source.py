"""Faults of an inventory that Ansible cannot read: a path of nothing, and files that are not YAML."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml

from vllm_spark.core import near_names, paths, text
from vllm_spark.core.refusal import Fix, Refusal, register

NO_INVENTORY = register("no-inventory", runbook="inventory-refused")
INVENTORY_FILE_UNREADABLE = register("inventory-file-unreadable", runbook="inventory-refused")

FOLDER = paths.ROOT / "inventories"
MINIMAL, SITE = FOLDER / "minimal", paths.INVENTORY
YAML_NAMES = (".yml", ".yaml", ".json")
# Folders beside an inventory whose files Ansible reads with it.
VARIABLES = ("group_vars", "host_vars")
ENCRYPTED = "$ANSIBLE_VAULT"


def missing(path: Path) -> Refusal:
    """Return the refusal of an inventory that does not exist, with the nearest one that does."""
    beside = {_shown(file.parent): file.parent.name for file in sorted(path.parent.glob("*/hosts.yml"))}
    beside |= {_shown(file.parent): file.parent.name for file in sorted(FOLDER.glob("*/hosts.yml"))}
    close = near_names.close_names(path.name, beside.values())
    near = next((shown for shown, name in beside.items() if name in close), "")
    fix: str | Fix
    if near:
        fix = f"use `-i {near}`."
    elif paths.sources(SITE):
        fix = f"use `-i {_shown(SITE)}`."
    else:
        fix = Fix("vllm-spark init", f"It writes {_shown(SITE)}.")
    return NO_INVENTORY(what=f"there is no inventory at {path}", expected=near or "a folder with hosts.yml", fix=fix)


def without_hosts(folder: Path) -> Refusal | None:
    """Return the refusal of a folder in which nothing names a host, or None. Ansible asks no plugin about it."""
    if not folder.is_dir() or paths.sources(folder):
        return None
    has = ", ".join(sorted(each.name for each in folder.iterdir())) or "nothing"
    return NO_INVENTORY(
        what=f"{_shown(folder)} names no host, it has {has}",
        expected=f"hosts.yml there, as in {_shown(MINIMAL)}",
        fix=Fix(f"vllm-spark init --to {shlex.quote(_shown(folder))}", "It writes hosts.yml and keeps the others."),
    )


def without_sparks() -> Refusal:
    """Return the refusal of an inventory whose group `sparks` has no host."""
    return NO_INVENTORY(
        what="the inventory has no host in the group sparks",
        expected="each Spark in a group with this name, whatever other groups it has",
        fix="name the group `sparks` in hosts.yml of the inventory: `ansible-inventory --graph` shows its groups.",
    )


def unreadable(path: Path) -> Refusal | None:
    """Return the refusal of the first file of an inventory that is not YAML, or None: of its hosts, or of the variables
    beside it."""
    if path.suffix not in YAML_NAMES:
        return None
    files = [path, *_variable_files(path.parent)]
    found = next(((file, fault) for file in files if (fault := _fault(file, is_hosts=file == path))), None)
    if not found:
        return None
    file, (place, what) = found
    return INVENTORY_FILE_UNREADABLE(
        what=f"{_shown(file)}{place}: {what}",
        expected=f"a YAML file as in {_shown(MINIMAL)}",
        fix=f"correct {_shown(file)}{place}.",
    )


def named(path: Path) -> dict[str, set[str]]:
    """Return the names of `deployments` and of `hosts` that the YAML files of an inventory write out. It is for the
    completion of what is typed: Ansible would take a second. A file that cannot be read has none."""
    files = [file for file in sorted(path.glob("*")) if file.suffix in YAML_NAMES] if path.is_dir() else [path]
    found: dict[str, set[str]] = {"deployments": set(), "hosts": set()}
    for file in [*files, *_variable_files(path if path.is_dir() else path.parent)]:
        with suppress(OSError, ValueError, yaml.YAMLError):
            for key, value in _members(yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)):
                if key == "hosts" and isinstance(value, yaml.MappingNode):
                    found["hosts"] |= {host.value for host, _ in value.value}
                elif key == "vllm_deployments":
                    found["deployments"] |= {each.value for inner, each in _members(value) if inner == "name"}
    return found


def _members(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    """Yield key and value of each map in a document."""
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _members(each)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key.value, value
            yield from _members(value)


def _variable_files(folder: Path) -> Iterator[Path]:
    for name in VARIABLES:
        for file in sorted((folder / name).rglob("*")):
            if file.is_file() and file.suffix in (*YAML_NAMES, "") and not file.name.startswith("."):
                yield file


def _fault(file: Path, *, is_hosts: bool) -> tuple[str, str] | None:
    """Return (:LINE:COLUMN, what is wrong) of a file, or None. The values are not constructed: Ansible's tags pass."""
    try:
        content = file.read_text(encoding="utf-8")
        node = None if content.startswith(ENCRYPTED) else yaml.compose(content, yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        return "", f"cannot be read: {error}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return f":{mark.line + 1}:{mark.column + 1}" if mark else "", f"not YAML, {error.problem or error.context}"
    except yaml.YAMLError as error:
        return "", f"not YAML: {text.one_line(str(error))}"
    if is_hosts and not isinstance(node, yaml.MappingNode) and not content.startswith(ENCRYPTED):
        return "", "it is empty" if node is None else "not a map of groups"
    return None


def _shown(path: Path) -> str:
    """Return a path as short as it is from the working directory. A lone dot would be lost in a sentence."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here) if here in absolute.parents else absolute)
