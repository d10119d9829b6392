"""Two ranks as one service: the ports, environment variables, flags and argv of each executor.

Pure data. deploy/ranks.py builds a Pair from the facts of both hosts; deploy/launch.py writes it into the launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vllm_spark.core.host_layout import RUN_DIR, SUPERVISOR
from vllm_spark.core.ports import ENGINE_PORT, MASTER_PORT, RAY_METRICS_PORT, RAY_PORT, RAY_PORTS, SUPERVISOR_PORT
from vllm_spark.core.units import GIB

# By default Ray reserves 30 % of memory for objects; a tensor-parallel engine stores none there.
RAY_OBJECT_STORE_BYTES = GIB


# NCCL logs this at every start, some hundred lines before the engine serves. The fabric gate reads from it which
# network NCCL uses.
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


@dataclass(frozen=True, slots=True)
class Pair:
    """The pair from the view of one rank. Addresses are the fabric's; `launch` is the fingerprint of both ranks."""

    rank: int
    executor: str
    address: str
    netdev: str
    peer: str
    peer_host: str
    env: Mapping[str, str] = field(default_factory=dict)
    launch: str = ""

    @property
    def head(self) -> str:
        """The head's address."""
        return self.peer if self.rank else self.address


def environment(pair: Pair) -> dict[str, str]:
    """Return the container's variables of one rank. The token of a Ray cluster is not among them: each start has a new
    one."""
    env = {**NCCL_LOG, **pair.env}
    if pair.executor == "mp":
        return {**env, "VLLM_PORT": str(ENGINE_PORT)}
    return {
        **env,
        "AUTOSCALER_METRIC_PORT": str(RAY_METRICS_PORT),
        "RAY_AUTH_MODE": "token",
        # Otherwise vLLM starts its own cluster beside this one and waits half an hour for a second GPU.
        "RAY_ADDRESS": f"{pair.head}:{RAY_PORT}",
    }


def flags(pair: Pair) -> dict[str, object]:
    """Return the flags of `vllm serve` that join the two ranks to one engine."""
    if pair.executor == "ray":
        return {"distributed-executor-backend": "ray"}
    return {
        "distributed-executor-backend": "mp",
        "nnodes": 2,
        "node-rank": pair.rank,
        "master-addr": pair.head,
        "master-port": MASTER_PORT,
        **({"headless": True} if pair.rank else {}),
    }


def ray_argv(pair: Pair) -> Iterator[str]:
    """Yield the argv of `ray start` of one rank: no dashboard, the fabric address, fixed ports."""
    yield "start"
    if pair.rank:
        yield from (f"--address={pair.head}:{RAY_PORT}", "--block")
    else:
        yield from ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
    yield from (
        "--disable-usage-stats",
        f"--node-ip-address={pair.address}",
        # Ray starts an idle worker for each CPU, each with a port of the range. If the ports run out, the engine waits
        # forever (observed with 32 CPUs). vLLM's ranks request a GPU and no CPU.
        "--num-cpus=1",
        "--num-gpus=1",
        f"--object-store-memory={RAY_OBJECT_STORE_BYTES}",
    )
    for name, port in RAY_PORTS.items():
        yield f"--{name}={port}"


def supervisor_argv(pair: Pair, name: str, image: str, api: str) -> Iterator[tuple[str, ...]]:
    """Yield the supervisor and its options, before the command that it runs. `api` is host:port of the head's API."""
    yield (SUPERVISOR,)
    yield ("--name", name)
    yield ("--rank", str(pair.rank))
    yield ("--launch", pair.launch)
    yield ("--image", image)
    yield ("--address", pair.address)
    yield ("--peer", pair.peer)
    yield ("--peer-host", pair.peer_host)
    yield ("--port", str(SUPERVISOR_PORT))
    if not pair.rank:
        yield ("--api", api)
        # A Ray worker needs a head to join; the ranks of mp find each other.
        if pair.executor == "ray":
            yield ("--first", f"{pair.address}:{RAY_PORT}")
    yield ("--",)


def session_env(name: str) -> str:
    """Return the path of the env file that the supervisor writes at every start: the token of this Ray cluster."""
    return f"{RUN_DIR}/{name}/session.env"
