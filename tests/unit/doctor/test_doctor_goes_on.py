"""`vllm-spark doctor`: errors after which the server answered, and logs that end with a complaint before a start."""

from __future__ import annotations

import pytest

from vllm_spark.doctor import command
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


REFUSED = 'INFO:     127.0.0.1:58412 - "POST /v1/completions HTTP/1.1" 404 Not Found\n'


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (STARTED + REFUSED * 2, "; 2 of 2 requests were refused, first at a.log:2"),
        (STARTED + REFUSED + ANSWER * 2, "log"),
        (STARTED + REFUSED + "vllm-spark: launch 01\n" + STARTED + ANSWER, "log"),
    ],
    ids=["all", "one of three", "in an earlier start"],
)
def test_a_server_that_refuses_its_requests_is_no_all_clear(text: str, end: str) -> None:
    log = Log("a.log")
    log.read(text)
    [line] = command.lines(judge([log]), [log])
    assert line.startswith("no finding in ")
    assert line.endswith(end)


WORKER = "RuntimeError: Worker failed with error '{}', please check the stack trace above for the root cause\n"
CUT = 'Traceback (most recent call last):\n  File "/opt/vllm/v1/worker/x.py", line 7, in f\n    raise OSError("{}")\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WORKER.format("Expected 3 heads of 4"), [("unrecognised", "Expected 3 heads of 4")]),
        (
            f"Traceback (most recent call last):\n{WORKER}".format("cell 7 is broken"),
            [("unrecognised", "cell 7 is broken")],
        ),
        ("ValueError: cell 7\n" + WORKER.format("another"), [("unrecognised", "ValueError: cell 7")]),
        (CUT.format("cell 7 is broken"), [("area-engine", "OSError: cell 7 is broken")]),
        (CUT.format("another") + "OSError: cell 8\n", [("area-engine", "OSError: cell 8")]),
    ],
    ids=["quoted", "quoted with its header", "a cause of its own", "cut at the raise", "not cut"],
)
def test_a_cause_that_is_only_quoted_or_cut_counts(text: str, expected: list[tuple[str, str]]) -> None:
    assert findings(text) == expected
