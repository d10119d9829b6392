"""Warnings about a host, as findings in the doctor's form. A warning stops nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vllm_spark.core.types import Facts
from vllm_spark.deploy import checks
from vllm_spark.deploy.checks.gpu import nvidia_smi_lines
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.doctor import diagnosis
from vllm_spark.doctor.findings import Finding, explain
from vllm_spark.doctor.log import Log
from vllm_spark.doctor.places import Place
from vllm_spark.inventory.spec import Spec


def findings(specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str) -> list[Finding]:
    """Return what is suspicious on one host of a deployment. `specs` and `facts` hold all hosts of the deployment; a
    difference between the two of a pair is reported at its head. A host without a rank has none."""
    if host not in specs:
        return []
    context = HostContext.of(specs, facts, host)
    warnings = [finding for check in checks.registered("warning") for finding in check.findings(context)]
    return [*warnings, *_signature_findings(context)]


def holders(specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str) -> list[str]:
    """Return the lines of those warnings that name who else holds memory of a host."""
    return lines([found for found in findings(specs, facts, host) if found.runbook == "gpu-memory-held.md"])


def lines(warnings: Sequence[Finding]) -> list[str]:
    """Return each warning as one line for the operator."""
    return [f"{finding.severity} {finding.signature}: {explain(finding)}" for finding in warnings]


def _signature_findings(context: HostContext) -> list[Finding]:
    """Return the findings of the doctor's signatures in the lines that nvidia-smi would print."""
    text = "\n".join(nvidia_smi_lines(context))
    if not text:
        return []
    placed = context.spec.deployment
    log = Log(context.host, place=Place(context.host, placed.name, placed.hosts, context.spec.image))
    log.read(text)
    return [replace(finding, number=0) for finding in diagnosis.judge([log]).findings]
