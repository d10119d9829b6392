"""`vllm-spark bench verdict`: judge a run against the run before, the forecast and its recipe."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vllm_spark.bench import evidence, verdict
from vllm_spark.cli.bench import status, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=Path, help="evidence of the run")
    parser.add_argument("--baseline", type=Path, help="evidence of an earlier run; default: the newest in its folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the verdict. Returns 1 unless it is good."""
    with status.refusal_is_2():
        new = evidence.read(args.file)
        old = evidence.read(args.baseline) if args.baseline else verdict.previous(new, args.file.parent)
    judged = verdict.verdict(new, old)
    if args.json:
        print(json.dumps(judged.to_json(), indent=2, ensure_ascii=False))
        return 0 if judged.state == "good" else 1
    print(judged.sentence)
    if judged.changed:
        print(f"changed: {', '.join(judged.changed)}")
    table.show(f"against {judged.baseline}", judged.before, "before", "now")
    table.show("against the forecast", judged.forecast, "forecast", "now")
    table.show("against the recipe's expected figures", judged.expected, "expected", "now")
    table.show("against the recipe's evidence", judged.evidence, "evidence", "now")
    for line in [*(f"{cell}: {why}" for cell, why in judged.causes.items()), *judged.notes]:
        print(line)
    return 0 if judged.state == "good" else 1
