"""Commands and files are read within bounds of size and time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_bundle
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_bundle import GAP, overlapped, read_file, run

from waiting import until

LINES = "".join(f"line {number:02}\n" for number in range(50))

# (bytes of the beginning, of the end) -> the text; a part of a line could be a part of a secret
ENDS = {
    (999, 999): LINES,
    (200, 200): LINES,
    (400, 0): LINES,
    (0, 400): LINES,
    (20, 20): f"line 00\nline 01\n{GAP}line 48\nline 49\n",
    (20, 0): f"line 00\nline 01\n{GAP}",
    (0, 20): f"{GAP}line 48\nline 49\n",
    (5, 5): GAP,
}


@pytest.mark.parametrize("bounds", ENDS)
def test_both_ends(bounds: tuple[int, int], tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(LINES)
    assert read_file(file, bounds) == ENDS[bounds]
    assert run(["cat", str(file)], bounds, 60) == (ENDS[bounds], "")


# the beginning, the end -> the text; a line with a time begins with a digit, a line of the same message with a space
JOINTS = {
    ("1 a\n2 b\n", "2 b\n3 c\n"): "1 a\n2 b\n3 c\n",
    ("1 a\n2 b\n", "4 d\n"): f"1 a\n2 b\n{GAP}4 d\n",
    ("1 a\n }\n\n2 b\n }\n\n3 c\n", " }\n\n3 c\n4 d\n"): "1 a\n }\n\n2 b\n }\n\n3 c\n4 d\n",
    ("1 a\n }\n", "\n }\n"): f"1 a\n }}\n{GAP}\n }}\n",
    ("1 a\n", ""): f"1 a\n{GAP}",
}


@pytest.mark.parametrize(("oldest", "newest"), JOINTS)
def test_two_ends_that_overlap_are_one_text(oldest: str, newest: str) -> None:
    assert overlapped(oldest, newest) == JOINTS[oldest, newest]


def test_an_endless_line_does_not_fill_the_memory() -> None:
    text, fault = run(["sh", "-c", "echo one; head -c 50000000 /dev/zero; echo; echo two"], (100, 100), 60)
    assert (text, fault) == (f"one\n{GAP}two\n", "")


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert run(["printf", r"\377\376\0\n"], (99, 99), 60) == ("\ufffd\ufffd\0\n", "")


# a shell command -> (fault, output); `written` says that all output has been written
COMMANDS: dict[str, tuple[str, str]] = {
    "echo a; echo b >&2; written": ("", "a\nb\n"),
    "echo no; written; exit 3": ("sh ended with status 3", "no\n"),
    "written; kill -9 $$": ("sh ended with status -9", ""),
    "echo a; written; sleep 600": ("sh did not end within 60 s", "a\n"),
    # A background process keeps the pipe open.
    "sleep 600 & echo a; written": ("sh did not end within 60 s", "a\n"),
    "exec >&- 2>&-; written; sleep 600": ("sh did not end within 60 s", ""),
    "trap '' TERM; echo a; written; while :; do sleep 1; done": ("sh did not end within 60 s", "a\n"),
}


@pytest.mark.parametrize("script", COMMANDS)
def test_commands_end(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first call the clock waits for the output, so that a busy machine has time for it, and is then one
    second before the deadline."""
    marker = tmp_path / "written"
    moments = [0.0]

    def clock() -> float:
        if len(moments) > 1:
            until(marker.exists)
        moments.append(time.monotonic())
        return 59.0 + moments[-1] - moments[2] if len(moments) > 2 else 0.0

    monkeypatch.setattr(spark_bundle, "time", SimpleNamespace(monotonic=clock))
    fault, output = COMMANDS[script]
    assert run(["sh", "-c", f"written() {{ : >'{marker}'; }}; {script}"], (99, 99), 60) == (output, fault)


def test_a_command_is_ended_after_enough_output() -> None:
    assert run(["sh", "-c", "while :; do echo a; done"], (6, 0), 60) == (f"a\na\na\n{GAP}", "")


def test_a_missing_command() -> None:
    assert run(["/no/such/program"], (9, 9), 1) == ("", "/no/such/program: No such file or directory")


def test_paths_that_are_not_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("s")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert read_file(tmp_path / "link", (9, 9)) == "s"
    for name, follow in (("pipe", True), (".", True), ("none", True), ("link", False)):
        with pytest.raises(OSError, match=name):
            read_file(tmp_path / name, (9, 9), follow=follow)
