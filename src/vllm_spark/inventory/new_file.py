"""The inventory that `vllm-spark init` writes, in the shape of inventories/minimal."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.core import paths
from vllm_spark.core.refusal import Fix, register
from vllm_spark.inventory import deployment

INVENTORY_EXISTS = register("inventory-exists", runbook="init-refused")

NAME = "hosts.yml"
HEAD = """\
---
# Written by `vllm-spark init`. It is yours: change it, or write it again after deleting it.
# inventories/sample explains every variable.
"""


def refuse_existing(folder: Path) -> None:
    """Raise RefusedError if a folder has an inventory, whatever the name of its file."""
    found = [file for file in paths.sources(folder) if file.is_file()]
    if found or folder.is_file():
        file = found[0] if found else folder
        raise INVENTORY_EXISTS.error(
            what=f"{file} exists",
            expected="a folder without an inventory, because init writes over nothing",
            fix=Fix(f"vllm-spark plan -i {folder}", "It reads that inventory. `--to FOLDER` writes another one."),
        )


def text(hosts: Mapping[str, Mapping[str, Any]], deployments: Sequence[Mapping[str, Any]]) -> str:
    """Return the file. `hosts`: name -> variables; one that all share stands once. Raises RefusedError for deployments
    that the toolkit would refuse."""
    deployment.parse(list(deployments))
    first = next(iter(hosts.values()))
    shared = {
        key: first[key] for key in ("ansible_user",) if all(host.get(key) == first.get(key) for host in hosts.values())
    }
    own = {name: {key: value for key, value in host.items() if key not in shared} for name, host in hosts.items()}
    document = {"sparks": {"hosts": own, "vars": {**shared, "vllm_deployments": list(deployments)}}}
    return HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)


def write(folder: Path, content: str) -> Path:
    """Write the file and return its path. A file that is there by now stays, and an interruption leaves none."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{NAME}.", encoding="utf-8") as unfinished:
        unfinished.write(content)
        unfinished.flush()
        os.fchmod(unfinished.fileno(), 0o644)
        try:
            os.link(unfinished.name, file)
        except FileExistsError:
            refuse_existing(folder)
            raise
    return file
