"""`vllm-spark doctor`: the health of a server that has started: errors of its own, stalls, a drafter without use."""

from __future__ import annotations

import pytest

from vllm_spark.doctor import command, rule_files
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import Finding
from vllm_spark.doctor.log import Log

STARTED = "(APIServer pid=1) INFO:     Application startup complete.\n"
ERROR = "(APIServer pid=1) ERROR 08-12 09:14:02 [serving.py:830] parser.HeaderError: tokens remain in the header\n"
REQUEST = '(APIServer pid=1) INFO:     10.0.0.7:34650 - "POST /v1/chat/completions HTTP/1.1" {}\n'
REPORT = (
    "(APIServer pid=1) INFO 05-27 01:08:{second:02} [loggers.py:271] Engine {engine:03}: Avg prompt throughput: 0.0 "
    "tokens/s, Avg generation throughput: {speed} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
    "GPU KV cache usage: {usage}%, Prefix cache hit rate: 61.0%\n"
)
DRAFTED = (
    "(APIServer pid=1) INFO 05-27 01:08:11 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 1.01, "
    "Accepted throughput: 0.02 tokens/s, Drafted throughput: 9.00 tokens/s, Accepted: 1 tokens, Drafted: {drafted} "
    "tokens, Per-position acceptance rate: 0.010, Avg Draft acceptance rate: {rate}%\n"
)
LAUNCH = "vllm-spark: launch 01\n"


def findings(text: str) -> list[Finding]:
    log = Log("a.log")
    log.read(text)
    judgement = judge([log])
    return [*judgement.findings, *judgement.unrecognised]


def ids(text: str) -> list[str]:
    return [found.signature for found in findings(text)]


def reports(count: int, **values: object) -> str:
    fixed = {"engine": 0, "speed": "0.0", "running": 3, "waiting": 0, "usage": 41.2} | values
    return "".join(REPORT.format(second=second, **fixed) for second in range(count))


@pytest.mark.parametrize("text", [ERROR + REQUEST.format(500), REQUEST.format(500) + ERROR], ids=["engine", "uvicorn"])
def test_an_error_of_the_server_is_not_the_client_s(text: str) -> None:
    [found] = findings(STARTED + text + REQUEST.format(200) * 2)
    assert (found.signature, found.severity, found.count) == ("request-fails", "warning", 1)
    assert "1 of 3 requests" in found.cause
    assert "tokens remain in the header" in found.cause
    assert "in the request" not in found.fix


def test_an_error_of_the_server_without_an_exception_is_a_warning() -> None:
    [found] = findings(STARTED + REQUEST.format(503))
    assert (found.signature, found.number) == ("request-fails", 2)


def test_refused_and_failed_requests_have_their_own_reasons() -> None:
    refused = ERROR.replace("tokens remain in the header", "the prompt is too long") + REQUEST.format(400)
    failed, bad = findings(STARTED + refused + ERROR + REQUEST.format(500))
    assert (failed.signature, bad.signature) == ("request-fails", "request-refused")
    assert "tokens remain" in failed.cause
    assert "too long" in bad.cause


def test_a_request_that_a_stop_cuts_is_no_fault() -> None:
    stop = "(APIServer pid=1) INFO 05-27 01:08:11 [launcher.py:1] [shutdown] API server: shutdown triggered\n"
    assert findings(STARTED + stop + REQUEST.format(500)) == []


@pytest.mark.parametrize(
    ("text", "stalls"),
    [
        pytest.param(reports(5), True, id="50 s"),
        pytest.param(reports(4), False, id="40 s"),
        pytest.param(reports(60), True, id="10 minutes"),
        pytest.param(reports(5, running=0, waiting=2), True, id="waiting"),
        pytest.param(reports(5, running=0), False, id="idle"),
        pytest.param(reports(5, speed="12.1"), False, id="generates"),
        pytest.param(reports(5) + reports(1, speed="12.1"), False, id="generates again"),
        pytest.param("".join(reports(1, usage=step) for step in range(9)), False, id="a long prompt fills the cache"),
        pytest.param(reports(5) + reports(5, engine=1, running=0), True, id="one of two engines"),
        pytest.param(reports(5) + LAUNCH + STARTED, False, id="of an earlier start"),
        pytest.param(STARTED + LAUNCH + STARTED + reports(5), True, id="of the last start"),
    ],
)
def test_requests_that_run_without_a_token_are_a_stall(text: str, *, stalls: bool) -> None:
    assert ids(STARTED + text) == ["engine-stalls"] * stalls


def test_a_stall_over_two_blocks_has_the_number_of_its_first_line() -> None:
    log = Log("a.log")
    for block in (STARTED + reports(3), reports(3)):
        log.read(block)
    [found] = judge([log]).findings
    assert (found.number, found.count) == (2, 6)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(DRAFTED.format(drafted=150, rate=0.7) * 2, True, id="two lines of many tokens"),
        pytest.param(DRAFTED.format(drafted=9, rate=0.0) * 12, False, id="many lines of few tokens"),
        pytest.param(DRAFTED.format(drafted=900, rate=30.1) * 2, False, id="accepted"),
    ],
)
def test_a_drafter_is_judged_by_its_tokens(text: str, *, found: bool) -> None:
    assert ids(STARTED + text) == ["drafter-not-accepted"] * found


SYMPTOM = "(EngineCore pid=9) ERROR 08-30 13:00:12 [core.py:1] TimeoutError: RPC call to sample_tokens timed out.\n"
CHANGED = "spark1:212:660 [0] ibvwrap.cc:229 NCCL WARN NET/IB : rocep1s0f0:1 Got async event : GID table change\n"


def test_a_warning_of_the_fabric_is_the_cause_of_a_symptom() -> None:
    [alone] = findings(STARTED + CHANGED)
    assert (alone.signature, alone.severity) == ("gid-table-changed", "warning")
    first, second = findings(STARTED + CHANGED + SYMPTOM)
    assert (first.signature, first.severity, second.signature) == ("gid-table-changed", "cause", "rpc-timeout")


def test_what_the_engine_prints_beside_any_failure_counts_only_alone() -> None:
    beside = "(EngineCore pid=9) ERROR 08-30 13:00:12 [dump.py:1] Dumping scheduler output for model execution: X\n"
    assert ids(beside + SYMPTOM) == ["rpc-timeout"]
    assert ids(STARTED + beside) == ["unrecognised"]


FATAL = rule_files.load("failure_lines")["fatal"]


@pytest.mark.parametrize("form", FATAL, ids=lambda form: form["source"].partition(",")[0])
def test_a_line_of_a_fatal_form_ends_a_sound_server(form: dict[str, str]) -> None:
    log = Log("a.log")
    log.read(f"{STARTED}{reports(1)}{form['example']}\n")
    judgement = judge([log])
    assert command.status(judgement) == command.FAILURE
    assert [found.number for found in (*judgement.findings, *judgement.unrecognised)] == [3]


@pytest.mark.parametrize(
    "line",
    [
        "ERROR [core.py:1138] a sentence that no version has printed",
        "F0403 10:11:12.131415    77 tcp_store.cc:51] Check failed: fd >= 0",
        "[2026-04-03 10:11:12,131 C 77 77] provider.cc:112:  Check failed: acquired",
        "(APIServer pid=1) malloc_consolidate(): unaligned fastbin chunk detected",
    ],
)
def test_an_unknown_end_is_shown_with_what_came_before_it(line: str) -> None:
    log = Log("a.log")
    log.read(f"{STARTED}{REQUEST.format(200)}{line}\n")
    judgement = judge([log])
    assert command.status(judgement) == command.FAILURE
    said = "\n".join(command.lines(judgement, [log]))
    assert "a.log:3: " in said
    assert "before it: Application startup complete." in said
    assert "before it: 10.0.0.7" in said


def test_an_answer_after_a_fatal_form_shows_that_the_server_went_on() -> None:
    text = "malloc_consolidate(): unaligned fastbin chunk detected\n"
    assert ids(LAUNCH + STARTED + text) == ["unrecognised"]
    assert ids(LAUNCH + STARTED + text + REQUEST.format(200)) == []
