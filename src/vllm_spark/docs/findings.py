"""docs/reference/findings.md: what the doctor knows, as an operator looks it up."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vllm_spark.docs.markdown import table
from vllm_spark.doctor.signatures import SEVERITIES, Signature, harmless, signatures
from vllm_spark.preflight import checks
from vllm_spark.preflight.registry import Check

HEAD = """\
# Findings

Made by `vllm-spark docs` from `doctor/signatures.yml` and `preflight/checks` of `src/vllm_spark`; do not edit it.
`vllm-spark doctor LOG…` looks for the first in logs of the engine, Ray, NCCL, the kernel and Docker, and lists what it
finds in this order. A start that fails ends with the first of them that is no warning. What is found of a host stands
last: `precheck` and `deploy` show it before anything starts. #N is an issue or pull request of vllm-project/vllm.
"""
TITLES = {
    "cause": "Causes: end a start or a server by themselves",
    "consequence": "Consequences: follow from another fault, often of the other Spark",
    "symptom": "Symptoms: another process failed or hangs",
    "warning": "Warnings: it runs, slowly, wrongly or not for long",
}


def text() -> str:
    """The page."""
    parts = [HEAD.rstrip()]
    for severity in SEVERITIES:
        known = [signature for signature in signatures() if signature.severity == severity]
        parts.append(
            _section(TITLES[severity], ("id", "looks like", "versions", "runbook", "source"), map(_cells, known))
        )
    parts.append(
        _section(
            "Harmless: looks like a fault and is none",
            ("looks like", "why", "source"),
            ((f"`{line.example}`", line.why, line.source) for line in harmless()),
        )
    )
    parts.append(
        _section(
            "Of a host: suspicious before a start",
            ("id", "what it says", "runbook", "source"),
            map(_host_cells, checks.registered("warning")),
        )
    )
    return "\n\n".join(parts) + "\n"


def _host_cells(check: Check) -> tuple[str, ...]:
    message = re.sub(r"\{(\w+)\}", lambda value: value[1].upper(), check.what)
    return check.id, message, _runbook(f"{check.runbook}.md"), check.source


def _cells(signature: Signature) -> tuple[str, ...]:
    # Of several lines the last one says most.
    example = f"`{signature.example.strip().splitlines()[-1].strip()}`"
    return signature.id, example, signature.versions, _runbook(signature.runbook), signature.source


def _runbook(name: str) -> str:
    return f"[{name.removesuffix('.md')}](../runbooks/{name})"


def _section(title: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    return f"## {title}\n\n{table(heads, rows)}"
