"""`vllm-spark bench report`: evidence files as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.bench import evidence, verdict
from vllm_spark.bench.report import page, svg
from vllm_spark.core.refusal import register

TOO_MANY = register("evidence-too-many", runbook="evidence-broken")
TWICE = register("evidence-twice", runbook="evidence-broken")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="evidence file; the oldest run is A")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.html", help="default: the first FILE as .html")


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path. Raises RefusedError if a file is not evidence, or there are too many."""
    if len(args.files) > svg.SHAPE_COUNT:
        raise TOO_MANY.error(
            what=f"{len(args.files)} evidence files",
            expected=f"{svg.SHAPE_COUNT} or fewer, which a reader can distinguish without colour",
            fix="name fewer files.",
        )
    runs = evidence.oldest_first(evidence.read(path) for path in args.files)
    ids = [each.run["id"] for each in runs]
    if repeated := next((each for each in runs if ids.count(each.run["id"]) > 1), None):
        raise TWICE.error(
            what=f"run {repeated.run['id']} twice, from {repeated.file}",
            expected="each run once",
            fix="name each run once.",
        )
    newest = runs[-1]
    history = [runs[0]] if len(runs) > 1 else verdict.earlier(newest, newest.file.parent)
    judged = verdict.verdict(newest, [run for run in history if {*run.cells} & {*newest.cells}])
    # Runs of several profiles are parts of one picture: the last one alone has no verdict on it.
    one_profile = len({run.run["profile"].get("name") for run in runs}) == 1
    expected = {
        (row.cell, row.metric): row.note for row in judged.others["forecast"] if row.note.startswith("forecast")
    }
    output: Path = args.output or args.files[0].with_suffix(".html")
    html = page.page(runs, verdict=judged.sentence if one_profile else None, expected=expected)
    output.write_text(html, encoding="utf-8")
    print(output)
    return 0
