"""docs/reference/findings.md: the doctor's signatures and the host warnings as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lab.pages.markdown import table
from vllm_spark.deploy import checks
from vllm_spark.deploy.check_registry import Check
from vllm_spark.doctor.families import Family, families
from vllm_spark.doctor.signatures import SEVERITIES, Signature, harmless, signatures

HEAD = """\
# Findings

`make docs` writes this page from `src/vllm_spark/doctor/signatures.yml`, `src/vllm_spark/doctor/families.yml` and
`src/vllm_spark/deploy/checks`; do not edit it. `vllm-spark doctor LOG…` searches logs of the engine, Ray,
NCCL, the kernel and Docker for the signatures, and lists its findings in this order. A failed start ends with the first
finding that is not a warning. The last table lists the host warnings, which `precheck` and `deploy` show before
anything starts. #N is an issue or pull request of vllm-project/vllm.
"""
TITLES = {
    "cause": "Causes: they end a start or a server",
    "consequence": "Consequences: they follow from another fault, often on the other Spark",
    "symptom": "Symptoms: another process failed or hangs",
    "warning": "Warnings: the server runs, but slowly, wrongly or not for long",
}


def text() -> str:
    """Return the page."""
    parts = [HEAD.rstrip()]
    for severity in SEVERITIES:
        listed = [signature for signature in signatures() if signature.severity == severity]
        parts.append(
            _section(TITLES[severity], ("id", "log line", "versions", "runbook", "source"), map(_cells, listed))
        )
    parts.append(
        _section(
            "Families: causes of exceptions that no signature above explains",
            ("id", "log line", "a second start can help", "runbook", "source"),
            map(_family_cells, families()),
        )
    )
    parts.append(
        _section(
            "Harmless: log lines that only look like a fault",
            ("log line", "why it is harmless", "source"),
            ((f"`{line.example}`", line.why, line.source) for line in harmless()),
        )
    )
    parts.append(
        _section(
            "Host warnings: visible before a start",
            ("id", "message", "runbook", "source"),
            map(_host_cells, checks.registered("warning")),
        )
    )
    return "\n\n".join(parts) + "\n"


def _host_cells(check: Check) -> tuple[str, ...]:
    message = re.sub(r"\{(\w+)\}", lambda value: value[1].upper(), check.what)
    return check.id, message, _runbook(f"{check.runbook}.md"), check.source


def _family_cells(family: Family) -> tuple[str, ...]:
    transient = "yes" if family.transient else "no"
    example = f"`{family.example.strip().splitlines()[-1].strip()}`"
    return family.id, example, transient, _runbook(family.runbook), family.source


def _cells(signature: Signature) -> tuple[str, ...]:
    # The last one of several lines is the most specific.
    example = f"`{signature.example.strip().splitlines()[-1].strip()}`"
    return signature.id, example, signature.versions, _runbook(signature.runbook), signature.source


def _runbook(name: str) -> str:
    return f"[{name.removesuffix('.md')}](../runbooks/{name})"


def _section(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    return f"## {title}\n\n{table(columns, rows)}"
