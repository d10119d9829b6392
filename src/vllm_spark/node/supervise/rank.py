"""The arguments that a launch passes to its supervisor."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from vllm_spark.node import deployment_state

# Tests have others.
PLACES = deployment_state.PLACES
MOST_RANKS = 8
DESCRIPTION = "Runs one rank of a deployment while the others run, and ends it with them."


@dataclasses.dataclass(frozen=True)
class Rank:
    """The arguments of one rank. Addresses are those of the fabric. `peers`: host -> address of each other rank, in the
    order of the ranks, so that the head is the first one of a worker. `in_turn` is the name of this host if one of the
    Sparks is shared, empty otherwise."""

    name: str
    rank: int
    launch: str
    image: str
    address: str
    peers: Mapping[str, str]
    port: int
    api: str
    first: str
    command: tuple[str, ...]
    in_turn: str = ""

    @property
    def partners(self) -> tuple[str, ...]:
        """The hosts that this rank is linked with: all others for the head, the head for a worker."""
        return tuple(self.peers)[: 1 if self.rank else None]

    @property
    def over_ray(self) -> bool:
        return any(word.startswith("RAY_ADDRESS=") for word in self.command)

    @property
    def container(self) -> str:
        return f"vllm-{self.name}"

    @property
    def run_dir(self) -> Path:
        return Path(PLACES.run, self.name)

    @property
    def session_env(self) -> Path:
        """The token of this start's Ray cluster, for the container alone."""
        return self.run_dir / "session.env"

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
    for name in ("name", "launch", "image", "address"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("peer", "peer-host"):
        parser.add_argument(f"--{name}", action="append", required=True)
    parser.add_argument("--rank", type=int, choices=range(MOST_RANKS), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api", default="", help="host:port or unix:SOCKET that answers /health when the head serves")
    parser.add_argument("--first", default="", help="host:port that must listen before the worker starts")
    parser.add_argument(
        "--in-turn", default="", help="the name of this host, on a Spark that several deployments share"
    )
    parser.add_argument("command", nargs="+")
    args = vars(parser.parse_args(argv))
    peers = dict(zip(args.pop("peer_host"), args.pop("peer"), strict=True))
    return Rank(**{**args, "peers": peers, "command": tuple(args["command"])})
