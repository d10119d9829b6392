"""`vllm-spark bench export`: evidence in the format of another site."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.bench import evidence, export
from vllm_spark.cli.bench import status


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("export", help="write evidence in spark-arena's format")
    parser.add_argument("file", type=Path, help="evidence of a run")
    parser.add_argument("--format", choices=["arena"], required=True)
    parser.add_argument("--output", type=Path, help="folder; default: beside the file, with its name and -arena")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files, and print what was written and what stays empty."""
    with status.refusal_is_2():
        content = evidence.read(args.file)
    folder = args.output or args.file.with_name(f"{args.file.stem}-arena")
    print("\n".join(export.write(content, folder)))
    return 0
