"""`vllm-spark report`: a stored report of a verification as text."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.core import documents, paths
from vllm_spark.core.plain_data import DocumentError
from vllm_spark.core.refusal import Fix, register
from vllm_spark.core.text import printable
from vllm_spark.verify import report

NO_REPORT = register("no-report", runbook="engine-failed-to-start")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", nargs="?", type=Path, help="default: the newest in reports/")


def run(args: argparse.Namespace) -> int:
    """Print one report, or the newest ones. Raises RefusedError if there is none."""
    if args.file:
        print(printable(_read(args.file)))
        return 0
    newest = report.latest(paths.REPORTS)
    if not newest:
        raise NO_REPORT.error(
            what=f"no report in {paths.REPORTS}",
            expected="a report, which deploy and verify write",
            fix=Fix("ansible-playbook verify.yml"),
        )
    # The head's report is the last one, because it ends with the next command.
    for document in reversed(newest):
        print(printable(report.readable(document)))
    return 0


def _read(file: Path) -> str:
    """Return a report that may be any file, as text. Raises RefusedError."""
    try:
        return report.readable(documents.read_json(file))
    except DocumentError as error:
        what = error.fault.what
    except (AttributeError, KeyError, TypeError) as error:
        what = f"another shape ({type(error).__name__}: {error})"
    raise NO_REPORT.error(
        what=f"{file} is no report of a verification: {what}",
        expected="a file of reports/, which deploy and verify write",
        fix=Fix("vllm-spark report", "It shows the newest one."),
    )
