"""`vllm-spark lend SPARK`: the verb, whose Spark is a word of its own."""

from __future__ import annotations

import argparse
from typing import NoReturn

from vllm_spark.cli import verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: those of the verb, after the Spark."""
    parser.add_argument("spark", metavar="SPARK", help="the Spark whose memory another program gets")
    verb.add_arguments(parser)


def run(args: argparse.Namespace) -> NoReturn:
    """Become the playbook of the verb."""
    args.options = [*args.options, f"-elend_spark={args.spark}"]
    verb.run(args)
