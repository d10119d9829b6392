"""Sub-commands that run a playbook of the clone, because only Ansible reads an inventory."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_spark.core import paths
from vllm_spark.core.refusal import Fix, register

NO_ANSIBLE = register("key-no-ansible", runbook="edge-key")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select Sparks."""
    parser.add_argument("-i", "--inventory", default="", help="as for ansible-playbook; default: that of ansible.cfg")
    parser.add_argument("-l", "--limit", default="", metavar="HOSTS", help="Sparks; default: all of the inventory")


def program(name: str, verb: str) -> str:
    """Return the path of a program of Ansible. `verb` is the sub-command that needs it. Raises RefusedError."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise NO_ANSIBLE.error(
            what=f"{path} does not exist",
            expected="the virtual environment of the clone",
            fix=Fix("make setup", f"Then `.venv/bin/vllm-spark {verb}`."),
        )
    return str(path)


def command(name: str, args: argparse.Namespace, more: Sequence[str]) -> list[str]:
    """Return the argv of a playbook. Raises RefusedError without Ansible."""
    executable = program("ansible-playbook", Path(name).stem)
    options = [*(["-i", args.inventory] if args.inventory else []), *(["-l", args.limit] if args.limit else [])]
    return [executable, *options, *more, str(paths.ROOT / name)]


def environment() -> dict[str, str]:
    """Return the environment of the playbook, with the toolkit's ansible.cfg and the site's inventory unless another
    configuration is named."""
    config = str(paths.ROOT / "ansible.cfg")
    own = {"ANSIBLE_CONFIG": config, "ANSIBLE_INVENTORY": str(paths.INVENTORY)}
    return {**(own if os.environ.get("ANSIBLE_CONFIG", config) == config else {}), **os.environ}
