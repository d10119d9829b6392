"""`vllm-spark key`: keys of persons for the edge. The key is drawn here, and only its hash leaves this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vllm_spark.cli import playbook
from vllm_spark.core.refusal import Fix, RefusedError, register
from vllm_spark.edge import persons
from vllm_spark.node import edge_key

ACTIONS = ("add", "revoke", "list")

NO_RIGHT = register("key-right", runbook="edge-key")
# The most tokens a day that a key may have.
MAX_TOKENS = 10**12


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
    parser.add_argument(
        "--class",
        dest="class_",
        choices=edge_key.CLASSES,
        help="of add: batch requests have a share of the engine and wait for it, if vllm_edge.fair is true; "
        "without it the key is interactive",
    )
    parser.add_argument(
        "--tokens-a-day",
        type=_tokens,
        metavar="N",
        help="of add: after N tokens of prompts and answers of a day the key is refused until midnight",
    )
    playbook.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the playbook of the verb. Prints a new key if every Spark has taken it. Returns the playbook's status."""
    if args.action != "list" and (refusal := persons.name_refusal(args.name)):
        raise RefusedError([refusal])
    if args.action != "add" and (given := next(iter(_of_key(args)), "")):
        option = f"--{given.replace('_', '-')}"
        raise NO_RIGHT.error(
            what=f"key {args.action} has {option}",
            expected=f"{option} with add, because it belongs to a new key",
            fix=Fix("vllm-spark key add NAME", f"With {option}. It replaces the person's earlier key."),
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
            words += [f"key_{name}={value}" for name, value in _of_key(args).items()]
            return [word for each in words for word in ("-e", each)]
        case "revoke":
            return ["-e", "key_state=absent", "-e", f"key_name={args.name}"]
        case _:
            return ["--check"]


def _of_key(args: argparse.Namespace) -> dict[str, object]:
    """Return what a new key has beside its person: name of a variable -> value."""
    given = {"may_switch": args.may_switch and "true", "class": args.class_, "tokens_a_day": args.tokens_a_day}
    return {name: value for name, value in given.items() if value}


def _tokens(text: str) -> int:
    """Return a quota. Raises argparse.ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_TOKENS):
        raise argparse.ArgumentTypeError(f"{text}: expected: a whole number from 1 to {MAX_TOKENS}")
    return int(text)
