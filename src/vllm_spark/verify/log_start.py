"""The check that a log reaches back to the start of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_spark.verify.gate_request import GateRequest


def log_has_start(request: GateRequest, lines: Sequence[str]) -> bool:
    """Return True if the lines contain the start of this launch. The journal drops old lines."""
    return any(f"vllm-spark: launch {request.launch}" in line for line in lines)
