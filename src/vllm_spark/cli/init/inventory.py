"""Write an inventory: find the Sparks, contact them, read their facts, propose a recipe, write and show the file."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
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
from vllm_spark.lifecycle import interruption
from vllm_spark.recipe import folders, loader

NO_TERMINAL = register("init-no-terminal", runbook="init-refused")


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
        text, verbs = _composed(args, Conversation(silent=args.yes), folder)
        file = new_file.write(folder, text)
    except (KeyboardInterrupt, EOFError):
        print(f"\nEnded. {folder} is as it was.", file=sys.stderr)
        return interruption.EXIT_STATUS
    print(f"\n{file}:\n{text}")
    there = [] if folder == paths.INVENTORY else ["-i", str(folder)]
    commands = " then ".join(f"`{shlex.join(['vllm-spark', verb, '-K', *there])}`" for verb in verbs)
    print(f"Next: {commands}, without -K if there is no password for sudo.")
    return 0


def _composed(args: argparse.Namespace, talk: Conversation, folder: Path) -> tuple[str, list[str]]:
    """Return the text of the inventory, and the verbs that come next."""
    searched = (folder / "recipes", paths.RECIPES) if args.to else folders.searched()
    recipes = [loader.load(name, searched).document for name in dict.fromkeys(args.recipe or ())]
    names = args.hosts or discovery.choose(talk)
    for recipe in recipes:
        proposal.groups(recipe, names)
    found = _named(names, {}, args, talk)
    facts = _contact(found, args, talk)
    if len(found) == 1 and (peers := discovery.peers(talk, found["spark1"], facts["spark1"])):
        more = _named(peers, found, args, talk)
        facts |= _contact(more, argparse.Namespace(**{**vars(args), "fingerprint": []}), talk)
        found |= more
    deployments = proposal.deployments(recipes or args.use, facts, searched, talk)
    fabric = proposal.fabric(deployments, facts)
    variables = {name: {**spark.variables, **fabric.get(name, {})} for name, spark in found.items()}
    return new_file.text(variables, deployments), ["fabric", "up"] if fabric else ["up"]


def _named(
    names: Sequence[str], known: Mapping[str, Spark], args: argparse.Namespace, talk: Conversation
) -> dict[str, Spark]:
    """Return the Sparks of names, numbered after the known ones."""
    found: dict[str, Spark] = {}
    for number, name in enumerate(names, len(known) + 1):
        users = [spark.variables["ansible_user"] for spark in (*known.values(), *found.values())]
        found[f"spark{number}"] = (
            Spark.here(discovery.own_address())
            if sparks.is_here(name)
            else Spark.by_ssh(name, args, talk, users[-1] if users else "")
        )
    return found


def _contact(found: Mapping[str, Spark], args: argparse.Namespace, talk: Conversation) -> dict[str, Facts]:
    """Contact Sparks and return their facts."""
    if logins := [spark.login for spark in found.values() if spark.login]:
        first_contact.run(argparse.Namespace(**{**vars(args), "hosts": logins}))
    facts = sparks.read_facts(found)
    for name, known in facts.items():
        address, memory = found[name].variables["ansible_host"], gib(known["memory"]["total"])
        talk.tell(f"{name}  ✓ {address} is a Spark with {memory} of memory")
    return facts
