"""The judgement of one host as a part of the document of `verify` for programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_spark.core.refusal import fix_to_json
from vllm_spark.core.types import Document
from vllm_spark.verify.verdict import Verdict


def body(
    host: str, result: Document, verdicts: Sequence[Verdict], url: str, rank: tuple[str, int] | None = None
) -> dict[str, Any]:
    """Return the document with the row of this host alone.

    `result` is that of vllm_verify. `url` is the address for clients, empty for a worker. `rank` is the name of the
    deployment and the host's rank, None for an edge alone.
    """
    deployment, number = rank or (None, None)
    row = {
        "host": host,
        "answers": True,
        "problem": "",
        "deployment": deployment,
        "rank": number,
        "holds": result["holds"],
        "missed": result["missed"] or None,
        "url": url or None,
        "waited_s": result.get("waited_s"),
        "running_s": result.get("running_s"),
        "restarts": result.get("restarts"),
        "report": result.get("report"),
        "gates": [_gate(verdict) for verdict in verdicts],
    }
    return {"hosts": [row]}


def _gate(verdict: Verdict) -> dict[str, Any]:
    return {
        "gate": verdict.gate,
        "id": verdict.id,
        "ok": verdict.ok,
        "observed": verdict.observed,
        "expected": verdict.expected or None,
        "fix": fix_to_json(verdict.fix, verdict.command) if verdict.fix else None,
        "runbook": verdict.runbook or None,
    }
