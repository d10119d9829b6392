"""Standard streams that are closed, full, read by half or of another encoding: a line, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

RUN = [sys.executable, "-m", "vllm_spark.cli.main"]


@pytest.mark.parametrize("argv", [["recipes"], ["render", "gpt-oss-120b"], ["plan", "gpt-oss-120b"], ["--help"]])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(argv: Sequence[str], closed: str) -> None:
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *RUN, *argv]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


def test_the_doctor_of_a_closed_input_has_read_nothing() -> None:
    shell = ["sh", "-c", '"$@" <&-', "sh", *RUN, "doctor", "-"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert "0 lines of 1 log, so nothing was read" in done.stdout


def test_a_reader_that_ends_early() -> None:
    shell = ["sh", "-c", '"$@" | head -1', "sh", *RUN, "recipes"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_terminal_that_knows_ascii_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", *RUN[1:], "plan", "gpt-oss-120b"],
        env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"\\xb1" in done.stdout


def test_an_output_without_room() -> None:
    shell = ["sh", "-c", '"$@" > /dev/full', "sh", *RUN, "recipes"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device — expected: room for what it writes. Fix: " in done.stderr
