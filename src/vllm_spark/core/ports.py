"""The ports that the toolkit itself listens on, and the addresses of listeners.

A port that an operator sets is not here.
"""

from __future__ import annotations

from collections.abc import Mapping

LOOPBACK = "127.0.0.1"
ALL_INTERFACES = "0.0.0.0"  # noqa: S104  an inventory's `bind`, the default of a server for a home network

# The ports that the ranks of a deployment choose are in one range, below the kernel's ephemeral ports. The launch
# closes all of them but to the fabric, because Ray and torch listen on every address (vLLM docs/usage/security.md).
# Under the Ray executor torch's store takes any port (0.32 v1/executor/ray_executor_v2.py, TCPStore with port 0).
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
# mp searches for free ports from here upwards (envs.py, VLLM_PORT). Ray does not get it: with a start port its second
# executor assigns one port twice and ends with EADDRINUSE (0.20.2; recipes/evidence/gemma-4-31b-fp8-tp2).
ENGINE_PORT = 25060
# The port of Ray's client server, which runs if grpcio is installed. Without grpcio `ray start` rejects the option that
# moves it, so it stays at its default. The heads of two pairs on one Spark both listen there, by gRPC's SO_REUSEPORT.
# Nothing asks it (seen with two heads of Ray 2.55.1 on one host, 29 November 2026).
RAY_CLIENT_PORT = 10001
# The ports that only the peer may reach, in the syntax of nft. The launch adds the kernel's ephemeral ports.
PAIR_PORTS = (f"{PORTS.start}-{PORTS.stop - 1}", str(RAY_CLIENT_PORT))
# A second pair on a Spark has the same ports, this many higher for each pair that the inventory has there before it.
PORT_SETS_APART = len(PORTS)
# On the loopback device: node-exporter of each Spark, and of one host Prometheus and Alertmanager.
EXPORTER_PORT, PROMETHEUS_PORT, ALERTS_PORT = 25095, 25096, 25097
# Servers of a pull. The firewall table lets every neighbour of their address in: each asks for a proof.
WEIGHTS_PORT = 25091
IMAGES_PORT = 25092
# On the loopback device of each Spark: the registry that its own Docker pulls from. Image names contain this port.
MIRROR_PORT = 25093
# On the loopback device of the first Spark: ssh forwards it to the bundle on the controller, unless both are one.
BUNDLE_PORT = 25094


def pair_ports(port_set: int) -> tuple[str, ...]:
    """Return the ports of one set of ports that only the peer may reach, in the syntax of nft."""
    higher = port_set * PORT_SETS_APART
    return (f"{PORTS.start + higher}-{PORTS.stop - 1 + higher}", *PAIR_PORTS[1:])
