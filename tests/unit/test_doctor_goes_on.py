"""`vllm-spark doctor`: errors after which the server answered, and logs that end with a complaint before a start."""

from __future__ import annotations

import pytest

from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.log import Log

STARTED = "INFO:     Application startup complete.\n"
CALL = """(EngineCore pid=9) ERROR 11-23 15:54:58 [core.py:1750] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-23 15:54:58 [core.py:1750]   File "/opt/vllm/v1/worker/gpu_worker.py", line 7, in add_lora
(EngineCore pid=9) ERROR 11-23 15:54:58 [core.py:1750] RuntimeError: LoRA is not enabled.
"""
ANSWER = 'INFO:     127.0.0.1:58412 - "POST /v1/completions HTTP/1.1" 200 OK\n'
LOADING = "(APIServer pid=1) INFO 11-23 15:54:58 [utils.py:1] loading\n"
COMPLAINT = "sparkd: the key of cluster a is not valid\n"


def findings(text: str) -> list[tuple[str, str]]:
    log = Log("a.log")
    log.read(text)
    judgement = judge([log])
    return [(finding.signature, finding.line) for finding in (*judgement.findings, *judgement.unrecognised)]


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        (STARTED + CALL + ANSWER, False),
        (CALL + ANSWER, False),
        (STARTED + CALL, True),
        (STARTED + ANSWER + CALL, True),
        (STARTED + ANSWER + "vllm-spark: launch 01\n" + CALL, True),
    ],
    ids=["answers later", "begins within the call", "no answer later", "answers before", "the next start fails"],
)
def test_an_error_counts_unless_the_server_answers_after_it(text: str, failed: bool) -> None:
    assert bool(findings(text)) == failed


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (LOADING + COMPLAINT, [COMPLAINT.strip()]),
        (LOADING + COMPLAINT + LOADING * 30, []),
        (STARTED + COMPLAINT, []),
        (LOADING + "UserWarning: a value is not valid\n", []),
    ],
    ids=["at the end", "long before the end", "of a server that serves", "a warning"],
)
def test_the_last_complaint_of_a_start_is_never_an_all_clear(text: str, lines: list[str]) -> None:
    assert [line for _, line in findings(text)] == lines
