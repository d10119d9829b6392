"""The arguments that a launch passes to its supervisor."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from vllm_spark.node import deployment_state

# Tests have others.
PLACES = deployment_state.PLACES
DESCRIPTION = "Runs one rank of a pair while the other rank runs, and ends it with the other."


@dataclasses.dataclass(frozen=True)
class Rank:
    """The arguments of one rank. Addresses are those of the fabric."""

    name: str
    rank: int
    launch: str
    image: str
    address: str
    peer: str
    peer_host: str
    port: int
    api: str
    first: str
    command: tuple[str, ...]

    @property
    def container(self) -> str:
        return f"vllm-{self.name}"

    @property
    def run_dir(self) -> Path:
        return Path(PLACES.run, self.name)

    @property
    def record(self) -> Path:
        return Path(PLACES.config, self.name) / "deployed.json"

    @property
    def key_file(self) -> Path:
        """The key of the deployment. deploy installs the same on both hosts, for root alone."""
        return Path(PLACES.config, self.name) / "link.key"


def parse(argv: Sequence[str]) -> Rank:
    """Return the rank that the arguments describe."""
    parser = argparse.ArgumentParser(prog="supervise", description=DESCRIPTION)
    for name in ("name", "launch", "image", "address", "peer", "peer-host"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rank", type=int, choices=(0, 1), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api", default="", help="host:port or unix:SOCKET that answers /health when the head serves")
    parser.add_argument("--first", default="", help="host:port that must listen before the worker starts")
    parser.add_argument("command", nargs="+")
    args = vars(parser.parse_args(argv))
    return Rank(**{**args, "command": tuple(args["command"])})
