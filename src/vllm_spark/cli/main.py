"""The command line of the toolkit: the commands that are no playbook."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from vllm_spark.cli import commands
from vllm_spark.cli.commands import Command, CommandParser
from vllm_spark.core.refusal import RefusedError, register

BENCH = "bench"
# README has the same rule.
RULE = """\
What asks or changes the Sparks of an inventory is a playbook, such as
ansible-playbook deploy.yml -K; everything else is a command of vllm-spark, such as
vllm-spark recipes. Two of these, key and sbom, start their playbook for you."""
# In the order of --help.
COMMANDS = {
    "render": Command("cli.render", "print the launch script of a recipe, without any host"),
    "recipes": Command("cli.recipes", "list the recipes: size, memory, speed, engine, pinned or not"),
    "recipe": Command("cli.recipe.command", "write a recipe of any model, import one, share one as one file"),
    "report": Command("cli.report", "print a report of a verification"),
    "check": Command("cli.check", "check recipe files, every fault at once"),
    "contact": Command("cli.contact.command", "first contact by password: host keys, public key, proof"),
    "plan": Command("cli.plan", "memory, download and speed of a recipe: go or no-go, without any host"),
    BENCH: Command("cli.bench.command", "measure a server; show, compare and judge the evidence"),
    "key": Command("cli.key", "add, revoke or list the keys of persons, without a restart"),
    "trust": Command("cli.trust", "write the certificate that clients of the edge trust"),
    "sbom": Command("cli.sbom", "write what a site runs: packages, images and models (CycloneDX 1.6)"),
    "doctor": Command("doctor.command", "name the root cause in logs of the engine, Ray, NCCL, the kernel, Docker"),
}

RECIPE_REFUSED = register("recipe-refused", runbook="recipe-refused")


class ShowVersion(argparse.Action):
    """Print the version of the toolkit and end. Only this option pays for the question to git."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from vllm_spark.core.version import version  # noqa: PLC0415  importlib.metadata takes a fifth of --help

        print(f"{parser.prog} {version()}")
        parser.exit()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command. Raises SystemExit(2) for wrong ones."""
    raw = argparse.RawDescriptionHelpFormatter  # the usual one breaks the name vllm-spark in two
    parser = CommandParser(prog="vllm-spark", description=RULE, formatter_class=raw)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version of the toolkit and its commit")
    commands.add(parser, COMMANDS, dest="command", required=True)
    return parser.parse_args(COMMANDS[BENCH].module().with_url(argv) if argv[:1] == [BENCH] else argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command. Returns its exit status: 1 for a refusal. Raises SystemExit(2) for wrong arguments."""
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except RefusedError as error:
        print(error, file=sys.stderr)
    except BrokenPipeError:
        # `| head` has read enough. The rest of the buffer would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, json.JSONDecodeError) as error:
        print(RECIPE_REFUSED(what=str(error), expected="a readable file", fix="name another file."), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
