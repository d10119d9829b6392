"""`vllm-spark VERB`: start the playbook of a verb. It says what happens, and its exit status is that of the command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any, NoReturn

from vllm_spark.cli import playbook, verbs
from vllm_spark.cli.verbs import Option
from vllm_spark.core import json_output, removed

JSON = Option("--json", None, "json", "true", "print one JSON document (docs/reference/json.md)")
NO_JSON = JSON._replace(help=argparse.SUPPRESS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments. What ansible-playbook knows beside them goes to it unread."""
    playbook.add_arguments(parser)
    verb = parser.prog.rpartition(" ")[2]
    documents = [JSON] * (verb in json_output.DOCUMENTS) + [NO_JSON] * (verb in removed.DOCUMENTS)
    for option in (*verbs.options(verb), *documents):
        how: dict[str, Any] = {"action": "append_const", "const": _variable(option, option.value)}
        if option.word:
            how = {"action": "append", "type": lambda typed, of=option: _variable(of, typed), "metavar": option.word}
        parser.add_argument(option.name, dest="options", help=option.help, **how)
    parser.set_defaults(rest=[], program="ansible-playbook")
    parser.epilog = "Any other option is one of ansible-playbook, such as -f 10 or --list-hosts."


def _variable(option: Option, value: str) -> str:
    """Return the argument of ansible-playbook, which splits the text of a variable as a shell does."""
    return f"-e{option.variable}={shlex.quote(value)}"


def run(args: argparse.Namespace) -> NoReturn:
    """Become the playbook, so that Ctrl-C and signals are its own. Raises RefusedError without Ansible."""
    args.json = _variable(JSON, JSON.value) in args.options  # for the document of a refusal
    argv = playbook.command(args.command, [*args.options, *args.rest])
    sys.stdout.flush()
    os.execve(argv[0], argv, playbook.environment())  # noqa: S606  no shell
