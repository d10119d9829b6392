"""`vllm-spark docs`: the generated pages of docs/reference."""

from __future__ import annotations

import argparse

from vllm_spark.core.refusal import RefusedError
from vllm_spark.docs import pages


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("docs", help="write the generated pages of docs/reference")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the pages that are out of date, or check them. Raises RefusedError with every page that is."""
    outdated = pages.outdated()
    if args.check and outdated:
        raise RefusedError(map(pages.stale_refusal, outdated))
    for name, text in outdated.items():
        pages.write(name, text)
        print(f"docs/reference/{name}")
    return 0
