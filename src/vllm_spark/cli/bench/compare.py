"""`vllm-spark bench compare`: two runs, metric by metric."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from vllm_spark.bench import compare, evidence, key, verdict
from vllm_spark.cli.bench import status, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("old", type=Path, metavar="A", help="evidence of a run")
    parser.add_argument("new", type=Path, metavar="B", help="evidence of another run; the older one of them is A")
    table.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the comparison of the newer run with the older one, whatever their order.

    Returns 1 if the newer one is worse or worthless, 2 if a leading figure could not be judged."""
    with status.refusal_is_3():
        old, new = evidence.oldest_first(map(evidence.read, (args.old, args.new)))
    result = compare.compare([old], new)
    state = verdict.compared_state(result)
    if args.json:
        rows = [asdict(row) | {"ratio": row.ratio} for row in result.rows]
        print(json.dumps(asdict(result) | {"rows": rows, "state": state}, indent=2, ensure_ascii=False))
    else:
        print(f"A, the older run: {old.file}; B: {new.file}")
        print(f"{state}: {key.sentence(old, new)}")
        table.show("", table.shown(result.rows, args))
        for cell, why in result.causes.items():
            print(f"{cell}: {why}")
    return status.of(state)
