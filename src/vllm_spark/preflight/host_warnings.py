"""What precheck says of a Spark's host: findings in the doctor's form, which stop nothing, and what no engine survives.

Texts, sources and limits are data/host_findings.yml; host_rules.py decides which hold. Pure but for reading the
packaged file once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import yaml

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.text import plain
from vllm_spark.core.types import Facts
from vllm_spark.doctor import diagnosis
from vllm_spark.doctor.diagnosis import Finding, Log
from vllm_spark.inventory.spec import Spec
from vllm_spark.preflight.host_warning_rules import RULES, HostContext, HostRule, Observation, nvidia_smi

DRIVER_TOO_OLD = register("driver-too-old", runbook="driver-version")

FILE = Path(__file__).with_name("host_warnings.yml")
SEVERITY = "warning"

# CUDA 13 needs it (docs.nvidia.com/deploy/cuda-compatibility: "CUDA 13.x >= 580"), and so does every image that a GB10
# runs: those for CUDA 12 hold no kernels for it (recipes/compatibility.yml).
OLDEST_DRIVER = 580


@cache
def load_rules() -> tuple[HostRule, ...]:
    """Read the file, in its order. Raises TypeError on a malformed one."""
    return tuple(HostRule(**entry) for entry in yaml.safe_load(FILE.read_text(encoding="utf-8")))


def findings(specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str) -> list[Finding]:
    """What is suspicious on one host of a deployment. `specs` and `facts` are by host, of all hosts of the deployment;
    what is between the two of a pair is said once, at its head."""
    peers = [name for name in specs if name != host] if host == specs[host].deployment.hosts[0] else []
    peer = peers[0] if peers else ""
    place = HostContext(host, specs[host], facts[host], peer, facts.get(peer, {}))
    found = [_finding(entry, seen, place) for entry in load_rules() for seen in RULES[entry.id](entry, place)]
    return [*found, *_of_the_doctor(place)]


def lines(found: list[Finding]) -> list[str]:
    """Each as an operator reads it, on one line."""
    return [f"{finding.severity} {finding.signature}: {diagnosis.explain(finding)}" for finding in found]


def refusals(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    """What surely breaks."""
    for gpu in facts.get("gpus") or []:
        branch = str(gpu.get("driver", "")).partition(".")[0]
        if branch.isdigit() and int(branch) < OLDEST_DRIVER:
            yield DRIVER_TOO_OLD(
                what=f"{spec.host} has driver {gpu['driver']}",
                expected=f"{OLDEST_DRIVER} or newer, which CUDA 13 needs",
                fix=f"ssh {spec.host} sudo apt-get install nvidia-driver-{OLDEST_DRIVER}-open, then reboot it.",
            )


def _finding(entry: HostRule, seen: Observation, place: HostContext) -> Finding:
    # Names of processes, containers and models are other people's words.
    values = {"host": place.name, "peer": place.peer} | {key: plain(value) for key, value in seen.values.items()}
    return Finding(
        signature=entry.id,
        cause=entry.cause.format(**values),
        line=plain(seen.line),
        fix=entry.fix.format(**values),
        runbook=entry.runbook,
        severity=SEVERITY,
        file=place.name,
    )


def _of_the_doctor(place: HostContext) -> list[Finding]:
    """What the doctor's signatures say of the lines that nvidia-smi would print."""
    text = "\n".join(nvidia_smi(place))
    if not text:
        return []
    log = Log(place.name)
    log.read(text)
    return [replace(finding, number=0) for finding in log.findings()]
