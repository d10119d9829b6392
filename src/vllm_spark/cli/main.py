"""The command line of the toolkit: commands that run without Ansible."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from vllm_spark.cli import check, docs, key, plan, recipes, render, report, sbom, trust
from vllm_spark.cli.bench import command as bench
from vllm_spark.cli.contact import command as contact
from vllm_spark.cli.recipe import command as recipe
from vllm_spark.core.refusal import RefusedError, register
from vllm_spark.core.version import version
from vllm_spark.doctor import command as doctor

# Each module has add_parser(commands), which adds one sub-command and sets its default `run` to run(args) -> int.
COMMANDS = (render, recipes, recipe, report, check, contact, plan, bench, key, trust, sbom, doctor, docs)

RECIPE_REFUSED = register("recipe-refused", runbook="recipe-refused")


class ShowVersion(argparse.Action):
    """Print the version of the toolkit and end. Only this option pays for the question to git."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"{parser.prog} {version()}")
        parser.exit()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a command. Raises SystemExit(2) for wrong ones."""
    parser = argparse.ArgumentParser(prog="vllm-spark", description=__doc__)
    parser.add_argument("--version", action=ShowVersion, nargs=0, help="show the version of the toolkit and its commit")
    commands = parser.add_subparsers(dest="command", required=True)
    for module in COMMANDS:
        module.add_parser(commands)
    return parser.parse_args(bench.with_url(argv))


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
