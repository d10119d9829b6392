"""`vllm-spark bench report`: evidence files as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.bench.evidence import BENCH_EVIDENCE, load
from vllm_spark.bench.report import marks, page
from vllm_spark.core.refusal import RefusedError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("report", help="write the report of one or more runs as one HTML file")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="evidence file; the first one is run A")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.html", help="default: the first FILE as .html")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path. Raises RefusedError if a file is not evidence, or there are too many."""
    if len(args.files) > marks.COUNT:
        raise RefusedError(
            [
                BENCH_EVIDENCE(
                    what=f"{len(args.files)} evidence files",
                    expected=f"{marks.COUNT} or fewer, which a reader can distinguish without colour",
                    fix="name fewer files.",
                )
            ]
        )
    runs = [load(path) for path in args.files]
    output: Path = args.output or args.files[0].with_suffix(".html")
    output.write_text(page.page(runs), encoding="utf-8")
    print(output)
    return 0
