"""`vllm-spark VERB`: start the playbook of a verb. It says what happens, and its exit status is that of the command."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from vllm_spark.cli import playbook
from vllm_spark.core import json_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments. What ansible-playbook knows beside them goes to it unread."""
    playbook.add_arguments(parser)
    if parser.prog.rpartition(" ")[2] in json_output.SCHEMAS:
        text = "print one JSON document (docs/reference/json.md)"
        parser.add_argument("--json", dest="options", action="append_const", const="-ejson=true", help=text)
    parser.set_defaults(rest=[])
    parser.epilog = "Any other option is one of ansible-playbook, such as -f 10 or --list-hosts."


def run(args: argparse.Namespace) -> NoReturn:
    """Become the playbook, so that Ctrl-C and signals are its own. Raises RefusedError without Ansible."""
    argv = playbook.command(args.command, [*args.options, *args.rest])
    sys.stdout.flush()
    os.execve(argv[0], argv, playbook.environment())  # noqa: S606  no shell
