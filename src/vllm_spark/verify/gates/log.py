"""What the engine's log must say, each from its own field and never from a list of candidates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm_spark.verify.gates.verdict import FABRIC, LOG, Verdict, miss

# "Using network" is NCCL's own choice per communicator, "via NET/" what a channel then goes over (NCCL src/net.cc,
# src/transport/net.cc; seen in 2.28.9).
NETWORK = re.compile(r"NCCL INFO (?:Using network (\w+)|Channel .* via NET/(\w+))")


def log(wanted: Mapping[str, Any], probe: Mapping[str, Any], lines: Sequence[str]) -> Iterator[Verdict]:
    del probe
    if not _holds_start(wanted, lines):
        if wanted["log"]:
            said = "the journal no longer holds the start of this engine; a restart would write it again"
            yield Verdict(LOG, "start", None, said)
        return
    for gate in wanted["log"]:
        yield log_verdict(gate, lines, wanted["unit"])


def fabric(wanted: Mapping[str, Any], probe: Mapping[str, Any], lines: Sequence[str]) -> Iterator[Verdict]:
    """NCCL falls back to TCP without a word where a container lacks /dev/infiniband; only its own log tells. GPUDirect
    RDMA is not asked for: a GB10 has none."""
    del probe
    if not wanted["fabric"] or not _holds_start(wanted, lines):
        return
    seen = {first or second for line in lines for first, second in NETWORK.findall(line)}
    if seen == {wanted["fabric"]}:
        yield Verdict(FABRIC, "network", True, f"NCCL uses NET/{wanted['fabric']}")
        return
    said = f"NCCL uses {', '.join(f'NET/{name}' for name in sorted(seen))}" if seen else "NCCL names no network"
    yield miss(
        FABRIC, "network", said, f"NET/{wanted['fabric']} alone",
        "see that the container has /dev/infiniband and IPC_LOCK (runtime of the recipe), and that the HCAs are up.",
        runbook="fabric-nccl-socket",
    )  # fmt: skip


def _holds_start(wanted: Mapping[str, Any], lines: Sequence[str]) -> bool:
    return any(f"vllm-spark: launch {wanted['launch']}" in line for line in lines)


def log_verdict(gate: Mapping[str, Any], lines: Sequence[str], unit: str = "vllm@NAME") -> Verdict:
    """Judge one log gate. Public because the engine's real logs are its test."""
    pattern = re.compile(gate["pattern"])
    match = next((found for line in lines if (found := pattern.search(line))), None)
    fix = f"{gate['why']} journalctl -u {unit}"
    if gate.get("expect", "present") == "absent":
        if match is None:
            return Verdict(LOG, gate["id"], True, "not in the log")
        return miss(LOG, gate["id"], f"the log says {match[0]!r}", "it absent", fix, runbook="log-gate")
    if match is None:
        return miss(LOG, gate["id"], f"no line matches {gate['pattern']!r}", "one", fix, runbook="log-gate")
    value = match["value"] if "value" in pattern.groupindex else match[0]
    if "equals" in gate and value != gate["equals"]:
        return miss(LOG, gate["id"], f"the log says {value}", gate["equals"], fix, runbook="log-gate")
    if "at_least" in gate and number(value) < gate["at_least"]:
        return miss(LOG, gate["id"], f"the log says {value}", f"at least {gate['at_least']}", fix, runbook="log-gate")
    return Verdict(LOG, gate["id"], True, value)


def number(text: str) -> float:
    """A number as the engine prints it, e.g. `146,240`. What is none counts as less than any bound."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return float("-inf")
