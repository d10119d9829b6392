"""`vllm-spark report`: a stored report of a verification as text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vllm_spark.core import paths
from vllm_spark.core.refusal import Fix, register
from vllm_spark.core.text import printable
from vllm_spark.verify import report

NO_REPORT = register("no-report", runbook="engine-failed-to-start")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", nargs="?", type=Path, help="default: the newest in reports/")


def run(args: argparse.Namespace) -> int:
    """Print one report, or the newest ones. Raises RefusedError if there is none."""
    documents = [json.loads(args.file.read_text(encoding="utf-8"))] if args.file else report.latest(paths.REPORTS)
    if not documents:
        raise NO_REPORT.error(
            what=f"no report in {paths.REPORTS}",
            expected="a report, which deploy and verify write",
            fix=Fix("ansible-playbook verify.yml"),
        )
    # The head's report is the last one, because it ends with the next command.
    for document in reversed(documents):
        print(printable(report.readable(document)))
    return 0
