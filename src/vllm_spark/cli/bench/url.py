"""`vllm-spark bench URL`: measure any OpenAI-compatible server with a profile."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from vllm_spark.bench import profiles
from vllm_spark.bench.live import Live
from vllm_spark.bench.url_run import UrlRun

FOLDER = Path("reports/bench")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("url", metavar="URL", help="address of an OpenAI-compatible server")
    parser.add_argument("--model", default="", help="served name; default: the server's only model")
    parser.add_argument("--profile", default="smoke", help=f"one of {', '.join(profiles.names())}; default: smoke")
    parser.add_argument("-o", "--output", type=Path, help="evidence file; an interrupted run continues in it")
    parser.add_argument("--key-variable", default="VLLM_API_KEY", help="environment variable with the server's API key")
    parser.add_argument(
        "--accept", action="append", default=[], metavar="FAULT", help="count a fault as a warning, e.g. garbage"
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print one line per cell. Returns 1 if a cell failed or was worthless."""
    profile = profiles.load(args.profile)
    slug = re.sub(r"\W+", "-", args.url.partition("://")[2]).strip("-")
    path = args.output or FOLDER / f"{slug}-{profile.name}-{time.strftime('%Y%m%dT%H%M%S')}.jsonl"
    one = UrlRun(
        re.sub(r"/(v1/?)?$", "", args.url),
        args.model,
        os.environ.get(args.key_variable, ""),
        profile,
        path,
        args.accept,
    )
    server = one.connect()
    cells, left_out = one.cells(server)
    for entry in left_out:
        print(f"not measured: {entry.cell['id']}: {entry.why}")
    with Live(sys.stdout) as live:
        progress = one.run(server, cells, live.show)
    print(f"evidence: {path}")
    print(f"Next: vllm-spark bench report {path}")
    return int(progress.failed > 0)
