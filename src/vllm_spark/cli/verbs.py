"""The verbs: each playbook of the folder is a command that starts it.

A playbook says in its first comment in which group of --help it stands. What it does is the name of its first play or,
if it has several, the rest of the comment.
"""

from __future__ import annotations

import re
from functools import cache

from vllm_spark.cli.commands import Command
from vllm_spark.core import paths

HEAD = re.compile(
    r"^# vllm-spark --help: (?P<group>[a-z]+)(?:: (?P<sentence>.+?))?$.*?^- name: (?P<name>.+?)$",
    re.MULTILINE | re.DOTALL,
)


@cache
def found() -> dict[str, Command]:
    """Return verb -> its command, by name. Without a reader of YAML, which takes longer than --help."""
    verbs = {}
    for file in sorted((paths.ROOT / "playbooks").glob("*.yml")):
        if head := HEAD.search(file.read_text(encoding="utf-8")):
            sentence = head["sentence"] or head["name"][0].lower() + head["name"][1:]
            verbs[file.stem] = Command("cli.verb", sentence, head["group"])
    return verbs
