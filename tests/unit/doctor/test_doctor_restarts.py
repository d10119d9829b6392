"""`vllm-spark doctor` on a journal with several starts: only the last start counts as serving."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

import pytest

from doctor_corpus import ENGINE_LOGS, OWN
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.log import Log
from vllm_spark.doctor.log_lines import LogEntry
from vllm_spark.doctor.server_state import ServerState

STOPPED = (ENGINE_LOGS / "sandbox-0.32-stopped.log").read_text()
ABORTED = (ENGINE_LOGS / "sandbox-0.32-stopped-status-1.log").read_text()
COMPLETE = "INFO:     Application shutdown complete.\n"
LAUNCH = "vllm-spark: launch 0123abcd\n"
SOME = sorted(OWN.glob("*.gz"))[::6]  # every log takes a tenth of a second
PERMISSION = "PermissionError: [Errno 13] Permission denied: '/cache/vllm'\n"


@cache
def first(text: str) -> str:
    log = Log("a.log")
    log.read(text)
    judgement = judge([log])
    fatal = [finding for finding in judgement.findings if finding.severity != "warning"]
    return next((finding.signature for finding in (*fatal, *judgement.unrecognised)), "")


@pytest.mark.slow
@pytest.mark.parametrize("file", SOME, ids=lambda file: file.name)
@pytest.mark.parametrize("before", [STOPPED + COMPLETE, ABORTED + LAUNCH], ids=["stopped", "stopped with status 1"])
def test_a_failure_after_a_server_that_was_stopped(before: str, file: Path) -> None:
    text = gzip.decompress(file.read_bytes()).decode(errors="replace")
    assert first(before + text) == first(text)


def test_an_exception_of_the_stop_is_no_failure() -> None:
    assert "psutil.NoSuchProcess" in ABORTED
    assert first(ABORTED) == ""


def test_a_plugin_that_is_not_loaded_is_a_warning() -> None:
    trace = 'Traceback (most recent call last):\n  File "/x/spark_plugin/__init__.py", line 1, in <module>\n'
    log = f"Failed to load plugin spark_models\n{trace}ModuleNotFoundError: No module named 'flash_attn_3'\n"
    assert first(log) == ""
    assert first(log + trace + "ModuleNotFoundError: No module named 'vllm._C'\n") == "packages-do-not-fit"


def test_an_exception_before_the_stop_is_a_failure() -> None:
    error = "(EngineCore pid=9) ERROR 11-23 10:00:00 [core.py:1] ValueError: 3 is odd\n"
    lines = ABORTED.splitlines(keepends=True)
    stop = next(number for number, line in enumerate(lines) if "shutdown triggered" in line)
    assert first("".join([*lines[:stop], error, *lines[stop:]])) == first(error) != ""


def test_an_excuse_of_an_earlier_start_does_not_count() -> None:
    served = "INFO:     Application startup complete.\n"
    assert first(LAUNCH + PERMISSION + served) == ""
    assert first(LAUNCH + PERMISSION + served + LAUNCH) == ""
    assert first(LAUNCH + served + LAUNCH + PERMISSION) == "permission-denied"
    assert first(LAUNCH + served + LAUNCH + PERMISSION + served) == ""


@pytest.mark.parametrize(
    ("line", "serving", "stopped"),
    [
        ("Starting vllm@tiny.service - vLLM deployment tiny...", False, None),
        ("Started vllm.service - my server.", False, None),
        ("Starting vllm-liveness@tiny.service - One token of vLLM deployment tiny...", True, 1),
        ("non-default args: {}", False, None),
    ],
)
def test_a_line_that_starts_a_server(line: str, serving: bool, stopped: int | None) -> None:
    state = ServerState(serving=True, stopped=1)
    state.read(2, LogEntry("", "", line), line)
    assert (state.serving, state.stopped) == (serving, stopped)
