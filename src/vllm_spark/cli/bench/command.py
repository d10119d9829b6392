"""`vllm-spark bench`: measure a server; show, compare and judge the evidence."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vllm_spark.cli import commands
from vllm_spark.cli.commands import Command

NAME = "bench"
# The sub-command that measures a URL. Its name is not typed: `vllm-spark bench http://…`.
LIVE = "url"

COMMANDS = {
    LIVE: Command("cli.bench.url", "measure a server; `bench URL` is the short form"),
    "report": Command("cli.bench.report", "write the report of one or more runs as one HTML file"),
    "compare": Command("cli.bench.compare", "compare two evidence files"),
    "accept": Command("cli.bench.accept", "take the figures of a run as the level of later ones, with the reason"),
    "verdict": Command("cli.bench.verdict", "judge a run; exit status 1 if it is worse or worthless, 2 if unknown"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of the group."""
    commands.add(parser, COMMANDS, dest="bench_command", required=True)


def with_url(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the name of the live sub-command before a URL, which stands in its place."""
    words = list(argv)
    if words[:1] == [NAME] and "://" in "".join(words[1:2]):
        words.insert(1, LIVE)
    return words
