"""`vllm-spark bench accept`: take the figures of a run as the level that later runs are judged by."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from vllm_spark.bench import evidence
from vllm_spark.cli.bench import status
from vllm_spark.node.bench import evidence_file
from vllm_spark.node.bench.records import AcceptRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", type=Path, help="evidence of the run")
    parser.add_argument("why", help="why it is slower, for example 'clocks capped at 2200 MHz for the noise'")


def run(args: argparse.Namespace) -> int:
    """Append the reason to the evidence. Later runs are judged by this run and those after it."""
    with status.refusal_is_3():
        evidence.read(args.file)
    record: AcceptRecord = {"record": "accept", "why": args.why, "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    evidence_file.append(args.file, record)
    print(f"{args.file} is the level of later runs: {args.why}")
    return 0
