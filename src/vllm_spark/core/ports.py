"""Every port that the toolkit itself listens on. A port that an operator sets is not here."""

from __future__ import annotations

from collections.abc import Mapping

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
# Of the range that a pair keeps for itself (pair.PORTS): the head's registry while it gives the worker an image. Docker
# takes plain HTTP from the loopback device without being told, so the worker has a relay there of the same number.
REGISTRY_PORT = 25090
# Of the range that a pair keeps for itself (pair.PORTS), so that the launch of a pair lets the peer alone in.
WEIGHTS_PORT = 25091
IMAGES_PORT = 25092
# On the loopback device of each Spark, where its own Docker asks.
MIRROR_PORT = 25093
# On the loopback device of the first Spark, from where ssh leads to the bundle on the controller.
BUNDLE_WEIGHTS_PORT = 25094
BUNDLE_IMAGES_PORT = 25095
