"""Sub-commands that start a playbook of the toolkit, because only Ansible reads an inventory."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from vllm_spark.core import paths, run_command
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.core.run_command import ThisRun

NO_ANSIBLE = register("no-ansible", runbook="wrong-command")

CHECK, INVENTORY = ("-C", "--check"), ("-i", "--inventory")
EXTRA_VARS = ("-e", "--extra-vars")
# Options of ansible-playbook: names, the word for a value, what they do.
OPTIONS: tuple[tuple[tuple[str, ...], str | None, str], ...] = (
    (INVENTORY, "INVENTORY", "default: inventories/site"),
    (("-l", "--limit"), "HOSTS", "Sparks; default: all of the inventory"),
    (("-K", "--ask-become-pass"), None, "ask for the password of sudo"),
    (CHECK, None, "say what would change, and change nothing"),
    (("-D", "--diff"), None, "show the lines that change"),
    (EXTRA_VARS, "NAME=VALUE", "set a variable"),
    (("-v", "--verbose"), None, "print more; -vvv prints most"),
)


class Kept(argparse.Action):
    """Keep an option and its value as typed, for ansible-playbook."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if option in EXTRA_VARS and value.startswith(("{", "[")) and (why := _yaml_fault(value)):
            parser.error(f"{option} {value}: {why} — expected: YAML or JSON. Fix: {option} NAME=VALUE")
        typed = [option, value] if self.metavar else [option]
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *typed])


def _yaml_fault(variables: str) -> str:
    """Return why variables that look like YAML are none, for which Ansible blames the inventory; empty if they are."""
    import yaml  # noqa: PLC0415  --help needs no YAML

    try:
        yaml.safe_load(variables)
    except yaml.YAMLError as error:
        return " ".join(str(error).split())
    return ""


def add_arguments(parser: argparse.ArgumentParser, only: Sequence[str] = ()) -> None:
    """Add the options of a playbook, or those of it in `only`, which `options` will have."""
    for names, word, text in OPTIONS:
        if only and names[0] not in only:
            continue
        nargs = None if word else 0
        parser.add_argument(*names, action=Kept, nargs=nargs, metavar=word, dest="options", default=[], help=text)


def this_run(args: argparse.Namespace) -> ThisRun:
    """Return how a command was started, for the commands that its messages print."""
    words = iter(getattr(args, "options", []))
    # `Kept` keeps a name and its value, and the names of an option have one meaning.
    names = {name: (names[0], word) for names, word, _ in OPTIONS for name in names if names[0] in run_command.ALL}
    options = [(names[name][0], next(words) if names[name][1] else "") for name in words if name in names]
    asks = [("-K", "")] if getattr(args, "ask_become_pass", False) else []
    return ThisRun(by_command=True, options=[*options, *asks])


def program(name: str, verb: str, options: Sequence[str]) -> str:
    """Return the path of a program of Ansible. `verb` is the sub-command that needs it, and `options` what it gets.

    Raises RefusedError without the program, and for an inventory without a host.
    """
    _refuse_without_hosts(options)
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        expected = "the ansible-core that the wheel requires" if paths.IS_INSTALLED else "the environment of the clone"
        again = "install the wheel again, such as by `uv tool install --force FILE.whl`."
        in_clone = Fix("make setup", f"Then `.venv/bin/vllm-spark {verb}`.")
        fix = again if paths.IS_INSTALLED else in_clone
        raise NO_ANSIBLE.error(what=f"{path} does not exist", expected=expected, fix=fix)
    return str(path)


def _refuse_without_hosts(options: Sequence[str]) -> None:
    named = [value for option, value in pairwise(options) if option in INVENTORY]
    for folder in map(Path, named or [environment().get("ANSIBLE_INVENTORY", "")]):
        # A sound inventory does not pay for the reader of YAML.
        if not paths.sources(folder):
            from vllm_spark.inventory import source  # noqa: PLC0415

            if refusal := source.without_hosts(folder):
                raise RefusedError([refusal])


@cache
def options_of(name: str) -> tuple[str, ...]:
    """Return the options of a program of Ansible, from its own help; nothing if it is not installed."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        return ()
    argv, env = [str(path), "--help"], environment()
    output = subprocess.run(argv, env=env, capture_output=True, text=True, check=False).stdout  # noqa: S603  no shell
    return tuple(dict.fromkeys(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", output)))


def command(verb: str, options: Sequence[str]) -> list[str]:
    """Return the argv of the playbook of a verb. Raises RefusedError as `program` does."""
    return [program("ansible-playbook", verb, options), *options, str(paths.ROOT / f"{verb}.yml")]


def run(argv: Sequence[str]) -> int:
    """Run a playbook that a command waits for. Returns its exit status, as a shell has it.

    Ctrl-C reaches both. The playbook ends in order after it, so this process waits.
    """
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        status = subprocess.run(argv, env=environment(), check=False).returncode  # noqa: S603  no shell
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def environment() -> dict[str, str]:
    """Return the environment of the playbook, with the toolkit's ansible.cfg and the site's inventory unless another
    configuration is named."""
    config = str(paths.ROOT / "ansible.cfg")
    own = {"ANSIBLE_CONFIG": config, "ANSIBLE_INVENTORY": str(paths.INVENTORY)}
    usual = own if os.environ.get("ANSIBLE_CONFIG", config) == config else {}
    return {**usual, run_command.DOOR: "vllm-spark", **os.environ}
