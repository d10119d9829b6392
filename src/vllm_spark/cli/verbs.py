"""The verbs: each playbook of the folder is a command that starts it.

A playbook says in its first comment in which group of --help it stands. What it does is the name of its first play or,
if it has several, the rest of the comment. The comments below it have the verb's own options, each of which sets a
variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from vllm_spark.cli.commands import Command
from vllm_spark.core import paths

HEAD = re.compile(
    r"^# vllm-spark --help: (?P<group>[a-z]+)(?:: (?P<sentence>.+?))?$.*?^- name: (?P<name>.+?)$",
    re.MULTILINE | re.DOTALL,
)

OPTION = re.compile(
    r"^# vllm-spark \w+ (?P<name>--[a-z]+)(?: (?P<word>[A-Z]+))?: -e (?P<variable>\w+)=(?P<value>\w+): (?P<help>.+)$",
    re.MULTILINE,
)


class Option(NamedTuple):
    """An option that sets a variable of a playbook, to a value or, if it has a word for that, to what is typed."""

    name: str
    word: str | None
    variable: str
    value: str
    help: str


@cache
def found() -> dict[str, Command]:
    """Return verb -> its command, by name. Without a reader of YAML, which takes longer than --help."""
    verbs = {}
    for file in sorted((paths.ROOT / "playbooks").glob("*.yml")):
        if head := HEAD.search(file.read_text(encoding="utf-8")):
            sentence = head["sentence"] or head["name"][0].lower() + head["name"][1:]
            verbs[file.stem] = Command("cli.verb", sentence, head["group"])
    return verbs


def options(verb: str) -> Iterator[Option]:
    """Yield the own options of a verb."""
    head, _, _ = (paths.ROOT / "playbooks" / f"{verb}.yml").read_text(encoding="utf-8").partition("\n- ")
    for option in OPTION.finditer(head):
        yield Option(*option.groups())
