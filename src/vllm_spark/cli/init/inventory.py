"""Write an inventory: find the Sparks, contact them, read their facts, propose a recipe, write and show the file."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from vllm_spark.cli.contact import first_contact
from vllm_spark.cli.init import discovery, proposal, sparks
from vllm_spark.cli.init.conversation import Conversation
from vllm_spark.cli.init.sparks import Spark
from vllm_spark.core import paths
from vllm_spark.core.refusal import Fix, register
from vllm_spark.core.types import Facts
from vllm_spark.core.units import gib
from vllm_spark.inventory import new_file
from vllm_spark.recipe import folders, loader

NO_TERMINAL = register("init-no-terminal", runbook="init-refused")

INTERRUPTED = 130


def run(args: argparse.Namespace) -> int:
    """Write an inventory. Returns the exit status. Raises RefusedError."""
    folder: Path = args.to or paths.INVENTORY
    new_file.refuse_existing(folder)
    if not args.yes and not sys.stdin.isatty():
        raise NO_TERMINAL.error(
            what="init asks, and there is no terminal",
            expected="a terminal, or --yes",
            fix=Fix(
                "vllm-spark init --yes", "HOST, --user, --use, --recipe and --fingerprint answer what it would ask."
            ),
        )
    try:
        file = _write(args, Conversation(silent=args.yes), folder)
    except (KeyboardInterrupt, EOFError):
        print(f"\nEnded. {folder} is as it was.", file=sys.stderr)
        return INTERRUPTED
    print(f"\n{file}:\n{file.read_text(encoding='utf-8')}")
    there = [] if folder == paths.INVENTORY else ["-i", str(folder)]
    command = shlex.join(["vllm-spark", "up", "-K", *there])
    print(f"Next: `{command}`, without -K if there is no password for sudo.")
    return 0


def _write(args: argparse.Namespace, talk: Conversation, folder: Path) -> Path:
    searched = (folder / "recipes", paths.RECIPES) if args.to else folders.searched()
    recipe = loader.load(args.recipe, searched).document if args.recipe else None
    names = args.hosts or discovery.choose(talk)
    if recipe:
        proposal.groups(recipe, names)
    found = {f"spark{number}": _spark(name, args, talk) for number, name in enumerate(names, 1)}
    facts = _contact(args, talk, found)
    if len(found) == 1:
        peers = discovery.peers(talk, found["spark1"], facts["spark1"])
        more = {f"spark{number}": _spark(name, args, talk) for number, name in enumerate(peers, 2)}
        facts |= _contact(args, talk, more)
        found |= more
    deployments = proposal.deployments(recipe or args.use, facts, searched, talk)
    return new_file.write(folder, new_file.text({name: one.variables for name, one in found.items()}, deployments))


def _spark(name: str, args: argparse.Namespace, talk: Conversation) -> Spark:
    return Spark.here(discovery.own_address()) if sparks.is_here(name) else Spark.by_ssh(name, args, talk)


def _contact(args: argparse.Namespace, talk: Conversation, found: Mapping[str, Spark]) -> dict[str, Facts]:
    """Contact Sparks and return their facts."""
    if not found:
        return {}
    if logins := [spark.login for spark in found.values() if spark.login]:
        first_contact.run(argparse.Namespace(**{**vars(args), "hosts": logins}))
    facts = sparks.read_facts(found)
    for name, known in facts.items():
        address, memory = found[name].variables["ansible_host"], gib(known["memory"]["total"])
        talk.tell(f"{name}  ✓ {address} is a Spark with {memory} of memory")
    return facts
