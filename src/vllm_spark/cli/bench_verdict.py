"""`vllm-spark bench verdict`: judge a run against the run before, the forecast and the reported figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vllm_spark.bench import judge

MARKS = {"good": "✓", "better": "✓", "worse": "✗", "unknown": "—"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("verdict", help="judge a run; the exit status is 1 if it is worse than expected")
    parser.add_argument("file", type=Path, metavar="FILE", help="evidence file")
    parser.add_argument("--baseline", type=Path, help="the run before; default: the newest comparable one beside FILE")
    parser.add_argument("--recipe", default="", help="recipe of the forecast; default: the one that the run names")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the verdict. Returns 1 if a figure is worse than expected, or a cell has none."""
    result = judge.judge(args.file, args.baseline, args.recipe).verdict
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print(result.sentence)
        for reason in result.unusable:
            print(f"✗ {reason}")
        for one in result.statements:
            print(f"{MARKS[one.state]} {one.against}: {one.text}")
    return int(not result.good)
