"""`vllm-spark bench verdict`: judge a run against the run before, the forecast and the reported figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vllm_spark.bench import comparison, evidence, profiles, verdict
from vllm_spark.bench.evidence import Run
from vllm_spark.core.refusal import RefusedError
from vllm_spark.recipe import loader

MARKS = {"good": "✓", "better": "✓", "worse": "✗", "unknown": "—"}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("verdict", help="judge a run; the exit status is 1 if it is worse than expected")
    parser.add_argument("file", type=Path, metavar="FILE", help="evidence file")
    parser.add_argument("--baseline", type=Path, help="the run before; default: the newest comparable one beside FILE")
    parser.add_argument("--recipe", default="", help="recipe for the forecast; default: the one that the run names")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the verdict. Returns 1 if a figure is worse than expected, or a cell has none."""
    judged = evidence.load(args.file)
    baseline = evidence.load(args.baseline) if args.baseline else before(args.file, judged)
    name = args.recipe or judged.record["subject"]["recipe"]
    recipe = loader.load(name).document if name else None
    known = profiles.names().get(str(judged.record["profile"].get("name")))
    figures = profiles.read(known, {}).figures if known else ()
    result = verdict.verdict(judged, baseline, recipe, figures)
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        print(result.sentence)
        for reason in result.unusable:
            print(f"✗ {reason}")
        for one in result.statements:
            print(f"{MARKS[one.state]} {one.against}: {one.text}")
    return int(not result.good)


def before(file: Path, run: Run) -> Run | None:
    """Return the newest run beside a file that began before it, has its profile and is comparable; None without one."""
    candidates = [other for path in file.parent.glob("*.jsonl") if path != file and (other := _readable(path))]
    earlier = [
        other
        for other in candidates
        if other.record["started"] < run.record["started"]
        and other.record["profile"].get("name") == run.record["profile"].get("name")
        and comparison.comparable(other.record["key"], run.record["key"])
    ]
    return max(earlier, key=lambda other: other.record["started"], default=None)


def _readable(path: Path) -> Run | None:
    """Return the run of a file; None for a file that is not evidence, which the operator did not name."""
    try:
        return evidence.load(path)
    except RefusedError:
        return None
