"""`vllm-spark docs`: the generated files."""

from __future__ import annotations

import argparse

from vllm_spark.core.refusal import RefusedError
from vllm_spark.docs import pages


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("docs", help="write the pages of docs/reference and the gates of recipes/schema.json")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files that are out of date, or check them. Raises RefusedError with every file that is."""
    outdated = pages.outdated()
    if args.check and outdated:
        raise RefusedError(map(pages.stale_refusal, outdated))
    for name, text in outdated.items():
        pages.write(name, text)
        print(name)
    return 0
