"""`vllm-spark key`: keys of persons for the edge. The key is drawn here, and only its hash leaves this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vllm_spark.cli import playbook
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.edge import persons

ACTIONS = ("add", "revoke", "list")

NO_RIGHT = register("key-right", runbook="edge-key")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="add: make a key, replacing an earlier one of the person, and print it once; revoke: end it at once",
    )
    parser.add_argument("name", nargs="?", default="", help="the person: letters, digits and . _ -; not for list")
    parser.add_argument(
        "--may-switch",
        action="store_true",
        help="of add: a request of this key may start a model, if vllm_edge.switch_by_request is true",
    )
    playbook.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the playbook of the verb. Prints a new key if every Spark has taken it. Returns the playbook's status."""
    if args.action != "list" and (refusal := persons.name_refusal(args.name)):
        raise RefusedError([refusal])
    if args.may_switch and args.action != "add":
        raise NO_RIGHT.error(
            what=f"key {args.action} has --may-switch",
            expected="--may-switch with add, because the right is one of a new key",
            fix=Fix("vllm-spark key add NAME --may-switch", "It replaces the person's earlier key."),
        )
    key = persons.new_key() if args.action == "add" else ""
    status = playbook.run(command(args, key))
    if key and status == 0 and not {*playbook.CHECK} & {*args.options}:
        print(f"The key of {args.name}, shown only now: {key}")
    return status


def command(args: argparse.Namespace, key: str) -> list[str]:
    """Return the argv of the playbook. It has the hash of the key, never the key."""
    return playbook.command("key", [*args.options, *_variables(args, key)])


def _variables(args: argparse.Namespace, key: str) -> Sequence[str]:
    match args.action:
        case "add":
            words = ["key_state=present", f"key_name={args.name}", f"key_hash={persons.key_hash(key)}"]
            words += ["key_may_switch=true"] if args.may_switch else []
            return [word for each in words for word in ("-e", each)]
        case "revoke":
            return ["-e", "key_state=absent", "-e", f"key_name={args.name}"]
        case _:
            return ["--check"]
