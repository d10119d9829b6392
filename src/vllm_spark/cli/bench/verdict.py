"""`vllm-spark bench verdict`: judge a run by the earlier runs of its key and by its recipe."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vllm_spark.bench import evidence, verdict
from vllm_spark.cli.bench import status, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=Path, help="evidence of the run")
    parser.add_argument(
        "--baseline",
        type=Path,
        nargs="+",
        default=[],
        metavar="OLDER",
        help="evidence of earlier runs; default: those of its key in its folder, or of the key before an upgrade",
    )
    table.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the verdict. Returns 0 if it is good, 1 if it is worse or worthless, 2 if it is unknown."""
    with status.refusal_is_3():
        new = evidence.read(args.file)
        named = evidence.oldest_first(map(evidence.read, args.baseline))
    judged = verdict.verdict(new, named or verdict.earlier(new, args.file.parent))
    if args.json:
        print(json.dumps(judged.to_json(), indent=2, ensure_ascii=False))
        return status.of(judged.state)
    print(judged.sentence)
    if judged.compared.changed:
        print(f"changed: {', '.join(judged.compared.changed)}")
    runs = "1 earlier run" if len(judged.history) == 1 else f"{len(judged.history)} earlier runs"
    table.show(f"against {runs}, the last {judged.baseline}", table.shown(judged.compared.rows, args), "before", "now")
    for name, rows in judged.others.items():
        table.show(f"against {verdict.REFERENCES[name][0]}", rows, name, "now")
    for line in [*(f"{cell}: {why}" for cell, why in judged.compared.causes.items()), *judged.notes]:
        print(line)
    return status.of(judged.state)
