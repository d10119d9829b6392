"""How this run of ansible-playbook was started, for the commands that its messages print."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.cli.playbook import PlaybookCLI

from vllm_spark.core import paths
from vllm_spark.core.run_command import ThisRun
from vllm_spark.node import secret_names
from vllm_spark_ansible import json_mode

# The options by which a run finds and reaches its hosts: their names in ansible-playbook's arguments, and the shortest
# words.
CARRIED = {
    "inventory": "-i",
    "subset": "-l",
    "remote_user": "-u",
    "private_key_file": "--private-key",
    "ask_pass": "-k",
    "connection_password_file": "--connection-password-file",
    "become_ask_pass": "-K",
    "become_password_file": "--become-password-file",
    "ask_vault_pass": "-J",
    "vault_ids": "--vault-id",
    "vault_password_files": "--vault-password-file",
}
# A variable that no inventory sets: it belongs to the command that it was typed with.
OF_A_VERB = re.compile(r"\b(?!vllm_)([a-z]\w+) \| default\(")


def this_run(argv: Sequence[str]) -> ThisRun:
    """Return how a run was started, from its argv as typed."""
    cli: Any = PlaybookCLI(list(argv))  # its parser comes with init_parser
    cli.init_parser()
    given, usual = (vars(cli.parser.parse_args(words)) for words in (argv[1:], ["x"]))
    options = [
        (option, "" if value is True else str(value))
        for name, option in CARRIED.items()
        if given[name] != usual[name]
        for value in (given[name] if isinstance(given[name], list) else [given[name]])
    ]
    folder, name = os.path.split(given["args"][0])
    variables = [("-e", text) for text in _of_the_site(given["extra_vars"], name.removesuffix(".yml"))]
    if Path(folder).resolve() != paths.ROOT:  # a playbook of the owner
        folder = "" if Path.cwd() == paths.ROOT else str(paths.ROOT)
    return ThisRun(folder=f"{folder}/" if folder else "", options=[*options, *variables])


def _of_the_site(typed: Sequence[str], verb: str) -> Iterator[str]:
    """Yield the -e of a run that describe its site: files, and variables that other verbs read too. None with a secret,
    because a message must not show it."""
    of_verbs = _of_verbs() if typed else frozenset[str]()
    for text in typed:
        names = set() if text.startswith("@") else set(_names(text))
        own = {name for name in names if name in of_verbs or name.startswith(f"vllm_{verb}_")}
        if not own and not any(map(secret_names.is_secret, names)):
            yield text


def _names(text: str) -> Iterator[str]:
    """Yield the names of the variables of one -e: JSON or YAML, or NAME=VALUE as a shell splits them."""
    if text.lstrip().startswith("{"):
        yield from yaml.safe_load(text)
    else:
        yield from (word.partition("=")[0] for word in shlex.split(text))


def _of_verbs() -> frozenset[str]:
    files = [*(paths.ROOT / "roles").glob("*/defaults/main.yml"), *(paths.ROOT / "playbooks").glob("*.yml")]
    found = (name for file in files for name in OF_A_VERB.findall(file.read_text(encoding="utf-8")))
    return frozenset([json_mode.VARIABLE, *found])
