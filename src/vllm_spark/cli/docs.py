"""`vllm-spark docs`: the generated pages of docs/reference."""

from __future__ import annotations

import argparse

from vllm_spark.core.refusal import RefusedError
from vllm_spark.docs import pages


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("docs", help="write the generated pages of docs/reference")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is out of date")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files that are out of date, or check them. Raises RefusedError with every file that is."""
    stale = pages.stale()
    if args.check and stale:
        raise RefusedError(map(pages.stale_refusal, stale))
    for name, (file, text) in stale.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(name)
    return 0
