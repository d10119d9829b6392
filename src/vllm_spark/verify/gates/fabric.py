"""Gate: NCCL uses the network that the recipe names.

NCCL falls back to TCP without a message if the container does not have /dev/infiniband; only its own log shows it.
GPUDirect RDMA is not expected: a GB10 does not have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vllm_spark.verify.gate import ROLES, Gate, no_requests
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.log_start import log_has_start
from vllm_spark.verify.probe_types import Probe
from vllm_spark.verify.verdict import Verdict, failure

NAME = "fabric"
# "Using network" is NCCL's own choice per communicator, "via NET/" what a channel then uses (NCCL src/net.cc,
# src/transport/net.cc; seen in 2.28.9).
NETWORK = re.compile(r"NCCL INFO (?:Using network (\w+)|Channel .* via NET/(\w+))")


def judge(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Yield one verdict on the network, if the recipe names one and the log reaches back to the start."""
    if not request.fabric or not log_has_start(request, lines):
        return
    networks = {first or second for line in lines for first, second in NETWORK.findall(line)}
    if networks == {request.fabric}:
        yield Verdict(NAME, "network", True, f"NCCL uses NET/{request.fabric}")
        return
    names = ", ".join(f"NET/{name}" for name in sorted(networks))
    yield failure(
        NAME, "network", f"NCCL uses {names}" if networks else "NCCL names no network", f"NET/{request.fabric} alone",
        "see that the container has /dev/infiniband and IPC_LOCK (runtime of the recipe), and that the HCAs are up.",
        runbook="fabric-nccl-socket",
    )  # fmt: skip


def judge_worker(request: GateRequest, probe: Probe, lines: Sequence[str]) -> Iterator[Verdict]:
    """Judge a worker by its own log: one rank may fall back alone. Over Ray the head's log has the lines of all ranks,
    and a worker's none."""
    if any("NCCL INFO" in line for line in lines):
        yield from judge(request, probe, lines)


GATE = Gate(
    name=NAME,
    proves="NCCL uses the network that the recipe names between Sparks, on each rank",
    order=40,
    optional=False,
    cheap=True,
    condition="two Sparks, where the recipe names a network",
    schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["network"],
        "properties": {
            "network": {
                "enum": ["IB", "Socket"],
                "description": "The network that NCCL must report between two Sparks.",
            }
        },
    },
    roles=ROLES,
    requests=no_requests,
    judge=judge,
    judge_worker=judge_worker,
)
