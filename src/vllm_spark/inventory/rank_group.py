"""Several ranks as one service: the ports, environment variables, flags and argv of each executor.

Pure data. deploy/ranks.py builds a RankGroup from the facts of all hosts; deploy/launch.py writes it into the launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.core import ports
from vllm_spark.core.ports import ENGINE_PORT, MASTER_PORT, RAY_METRICS_PORT, RAY_PORT, RAY_PORTS, SUPERVISOR_PORT
from vllm_spark.core.units import GIB
from vllm_spark.node.host_layout import RUN_DIR, SUPERVISOR

# By default Ray reserves 30 % of memory for objects; a tensor-parallel engine stores none there.
RAY_OBJECT_STORE_BYTES = GIB


# NCCL logs this at every start, some hundred lines before the engine serves. The fabric gate reads from it which
# network NCCL uses.
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


@dataclass(frozen=True, slots=True)
class Member:
    """A host of the group and its address on the fabric."""

    host: str
    address: str


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The group from the view of one rank. `members` are those of all ranks, in the order of the ranks. `netdev` and
    `env` are this rank's; `launch` is the fingerprint of all ranks. `port_set` is 0, or that of a further pair of the
    Sparks. `in_turn`: it shares a Spark, so it loads only while it has the turn of each."""

    rank: int
    executor: str
    netdev: str
    members: tuple[Member, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    launch: str = ""
    port_set: int = 0
    in_turn: bool = False

    def port(self, first: int) -> int:
        """Return the port of this group in place of that of the first one."""
        return first + self.port_set * ports.PORT_SETS_APART

    @property
    def address(self) -> str:
        """The address of this rank."""
        return self.members[self.rank].address

    @property
    def head(self) -> str:
        """The head's address."""
        return self.members[0].address

    @property
    def others(self) -> tuple[Member, ...]:
        """The members of the other ranks."""
        return tuple(member for rank, member in enumerate(self.members) if rank != self.rank)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RankGroup:
        """Build from the result of `dataclasses.asdict`."""
        return cls(**{**document, "members": tuple(Member(**member) for member in document["members"])})


def environment(group: RankGroup) -> dict[str, str]:
    """Return the container's variables of one rank. The token of a Ray cluster is not among them: each start has a new
    one."""
    env = {**NCCL_LOG, **group.env}
    if group.executor == "mp":
        return {**env, "VLLM_PORT": str(group.port(ENGINE_PORT))}
    return {
        **env,
        "AUTOSCALER_METRIC_PORT": str(group.port(RAY_METRICS_PORT)),
        "RAY_AUTH_MODE": "token",
        # Otherwise vLLM starts its own cluster beside this one and waits half an hour for a second GPU.
        "RAY_ADDRESS": f"{group.head}:{group.port(RAY_PORT)}",
    }


def flags(group: RankGroup) -> dict[str, object]:
    """Return the flags of `vllm serve` that join the ranks to one engine."""
    if group.executor == "ray":
        return {"distributed-executor-backend": "ray"}
    return {
        "distributed-executor-backend": "mp",
        "nnodes": len(group.members),
        "node-rank": group.rank,
        "master-addr": group.head,
        "master-port": group.port(MASTER_PORT),
        **({"headless": True} if group.rank else {}),
    }


def ray_argv(group: RankGroup) -> Iterator[str]:
    """Yield the argv of `ray start` of one rank: no dashboard, the fabric address, fixed ports."""
    yield "start"
    if group.rank:
        yield from (f"--address={group.head}:{group.port(RAY_PORT)}", "--block")
    else:
        yield from ("--head", f"--port={group.port(RAY_PORT)}", "--include-dashboard=false")
    yield from (
        "--disable-usage-stats",
        f"--node-ip-address={group.address}",
        # Ray starts an idle worker for each CPU, each with a port of the range. If the ports run out, the engine waits
        # forever (observed with 32 CPUs). vLLM's ranks request a GPU and no CPU.
        "--num-cpus=1",
        "--num-gpus=1",
        f"--object-store-memory={RAY_OBJECT_STORE_BYTES}",
    )
    for name, port in RAY_PORTS.items():
        yield f"--{name}={group.port(port)}"


def supervisor_argv(group: RankGroup, name: str, image: str, api: str) -> Iterator[tuple[str, ...]]:
    """Yield the supervisor and its options, before the command that it runs. `api` is host:port of the head's API."""
    yield (SUPERVISOR,)
    yield ("--name", name)
    yield ("--rank", str(group.rank))
    yield ("--launch", group.launch)
    yield ("--image", image)
    yield ("--address", group.address)
    for other in group.others:
        yield ("--peer", other.address)
        yield ("--peer-host", other.host)
    yield ("--port", str(group.port(SUPERVISOR_PORT)))
    if group.in_turn:
        yield ("--in-turn", group.members[group.rank].host)
    if not group.rank:
        yield ("--api", api)
        # A Ray worker needs a head to join; the ranks of mp find each other.
        if group.executor == "ray":
            yield ("--first", f"{group.address}:{group.port(RAY_PORT)}")
    yield ("--",)


def session_env(name: str) -> str:
    """Return the path of the env file that the supervisor writes at every start: the token of this Ray cluster."""
    return f"{RUN_DIR}/{name}/session.env"
