"""Two ranks as one service: the ports they use, and the words that make them one cluster, by executor.

Pure data. src/vllm_spark/ranks.py makes a Pair from the facts of both boxes; src/vllm_spark/launch.py writes it down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# What a pair listens on by choice lies in one range, below the kernel's ephemeral ports. The launch keeps both to the
# fabric, because Ray and torch listen on every address (vLLM docs/usage/security.md), torch's store under the Ray
# executor on any port (0.32 v1/executor/ray_executor_v2.py, TCPStore with port 0).
PORTS = range(25000, 25100)
SUPERVISOR_PORT = 25000
RAY_PORT = 25001
RAY_PORTS: Mapping[str, int] = {
    "node-manager-port": 25002,
    "object-manager-port": 25003,
    "runtime-env-agent-port": 25004,
    "dashboard-agent-listen-port": 25005,
    "dashboard-agent-grpc-port": 25006,
    "metrics-export-port": 25007,
    "min-worker-port": 25010,
    "max-worker-port": 25039,
}
RAY_METRICS_PORT = 25009
MASTER_PORT = 25050
# mp looks for its own ports from here upwards (envs.py, VLLM_PORT). Not Ray: its second executor, told where to begin,
# gives one port out twice and ends with EADDRINUSE (0.20.2; recipes/evidence/gemma-4-31b-fp8-tp2).
ENGINE_PORT = 25060
# Ray's client server, which takes it wherever grpcio is installed; `ray start` refuses the option to move it where it
# is not.
RAY_CLIENT_PORT = 10001
# What only the peer may reach, as iptables writes it; the launch adds the kernel's ephemeral ports.
CLOSED_PORTS = (f"{PORTS.start}:{PORTS.stop - 1}", str(RAY_CLIENT_PORT))

# Ray takes 30 % of memory for objects unless told; a tensor-parallel engine keeps none there.
RAY_OBJECT_STORE_BYTES = 1 << 30

RUN_DIR = "/run/vllm-spark"
SUPERVISOR = "/usr/local/lib/vllm-spark/supervise"

# Said at every start, some hundred lines before the engine serves: it is how the fabric gate knows what NCCL took.
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


@dataclass(frozen=True, slots=True)
class Pair:
    """What one rank knows of its pair. Addresses are the fabric's; `launch` is the fingerprint of both ranks."""

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
    """The container's variables of one rank, but for the token of a Ray cluster, which is new with every start."""
    env = {**NCCL_LOG, **pair.env}
    if pair.executor == "mp":
        return {**env, "VLLM_PORT": str(ENGINE_PORT)}
    return {
        **env,
        "AUTOSCALER_METRIC_PORT": str(RAY_METRICS_PORT),
        "RAY_AUTH_MODE": "token",
        # Else vLLM makes a cluster of its own beside this one, and waits half an hour for a second GPU.
        "RAY_ADDRESS": f"{pair.head}:{RAY_PORT}",
    }


def flags(pair: Pair) -> dict[str, object]:
    """The flags of `vllm serve` that make two of them one engine."""
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


def ray_words(pair: Pair) -> Iterator[str]:
    """`ray start` of one rank: no dashboard, known to Ray by its fabric address, every port a fixed one."""
    yield "start"
    if pair.rank:
        yield from (f"--address={pair.head}:{RAY_PORT}", "--block")
    else:
        yield from ("--head", f"--port={RAY_PORT}", "--include-dashboard=false")
    yield from (
        "--disable-usage-stats",
        f"--node-ip-address={pair.address}",
        # Ray starts an idle worker for each CPU, each with a port of the range; when they run out, the engine waits for
        # ever (seen with 32 CPUs). vLLM's ranks ask for a GPU and no CPU.
        "--num-cpus=1",
        "--num-gpus=1",
        f"--object-store-memory={RAY_OBJECT_STORE_BYTES}",
    )
    for name, port in RAY_PORTS.items():
        yield f"--{name}={port}"


def supervisor_words(pair: Pair, name: str, image: str, api: str) -> Iterator[tuple[str, ...]]:
    """The supervisor and its options, before the command that it runs. `api` is where the head answers, host:port."""
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
        # A Ray worker needs a head to join; the ranks of mp look for each other.
        if pair.executor == "ray":
            yield ("--first", f"{pair.address}:{RAY_PORT}")
    yield ("--",)


def session_env(name: str) -> str:
    """The env file that the supervisor writes at every start: the token of this Ray cluster."""
    return f"{RUN_DIR}/{name}/session.env"
