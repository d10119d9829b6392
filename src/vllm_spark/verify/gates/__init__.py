"""Gates: what must hold before a deployment counts as serving. Pure: requests out, verdicts in.

plugins/modules/vllm_probe.py puts the questions to the engine from the box itself; what its replies mean
is decided here, one file a gate.
"""

from vllm_spark.verify.gates.log import log_verdict, number
from vllm_spark.verify.gates.ready import is_ready
from vllm_spark.verify.gates.runner import Round, judge, missed, request, requests, rounds
from vllm_spark.verify.gates.verdict import (
    ANSWER,
    FABRIC,
    FAILOVER,
    GARBAGE,
    IDENTITY,
    LOG,
    MARKS,
    PROBE,
    PROVES,
    READY,
    REASONING,
    STRUCTURED,
    TOOLS,
    VISION,
    Verdict,
)

__all__ = [
    "ANSWER",
    "FABRIC",
    "FAILOVER",
    "GARBAGE",
    "IDENTITY",
    "LOG",
    "MARKS",
    "PROBE",
    "PROVES",
    "READY",
    "REASONING",
    "STRUCTURED",
    "TOOLS",
    "VISION",
    "Round",
    "Verdict",
    "is_ready",
    "judge",
    "log_verdict",
    "missed",
    "number",
    "request",
    "requests",
    "rounds",
]
