"""Commands and files are read within bounds of size and time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_bounded
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_bounded import (
    GAP,
    LINE_BYTES,
    HeadBuffer,
    HeadTailBuffer,
    Lines,
    TailBuffer,
    join,
    read_file,
    stream_command,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import CUT

NUMBERS = [str(number) for number in range(10)]


# (lines, bytes) of the beginning, of the end -> the kept ones of the lines 0 to 9
ENDS = [
    ((20, 99), (20, 99), NUMBERS),
    ((5, 99), (5, 99), NUMBERS),
    ((3, 99), (2, 99), ["0", "1", "2", GAP, "8", "9"]),
    ((20, 3), (20, 2), ["0", "1", "2", GAP, "8", "9"]),
    ((0, 99), (2, 99), [GAP, "8", "9"]),
    ((2, 99), (0, 99), ["0", "1", GAP]),
    # One line is kept even if it is longer than the bound.
    ((0, 0), (20, 0), [GAP, "9"]),
]


@pytest.mark.parametrize(("first", "last", "kept"), ENDS)
def test_both_ends(first: tuple[int, int], last: tuple[int, int], kept: list[str]) -> None:
    ends = HeadTailBuffer(first, last)
    assert all(ends.add(line) for line in NUMBERS)
    text, left_out = ends.text()
    assert text.splitlines() == kept
    missing = 10 - len(set(kept) - {GAP})
    assert left_out == (f"{missing} lines between beginning and end" if missing else "")


# first lines, last lines of the same text -> joined
JOINED = {
    "a gap": ("abc", "xyz", "abc|xyz"),
    "they touch": ("abc", "cde", "abcde"),
    "the same": ("abc", "abc", "abc"),
    "the last in the first": ("abcab", "ab", "abcab"),
    "one line over and over": ("aaa", "aaaa", "aaaa"),
    "nothing": ("", "", "|"),
}


@pytest.mark.parametrize("name", JOINED)
def test_ends_are_joined(name: str) -> None:
    first, last, expected = JOINED[name]
    text, left_out = join(first, last)
    assert text.replace(GAP, "|").replace("\n", "") == expected
    assert bool(left_out) == ("|" in expected)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_lines_of_any_bytes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_bounded, "LINE_BYTES", 100)
    long = b"x" * 105
    data = b"one\r\n\n" + long + b"\n\xff\xfe\x00\nlast"
    kept: list[str] = []
    lines = Lines(lambda line: kept.append(line) is None)
    for start in range(0, len(data), size):
        assert lines.feed(data[start : start + size])
    assert lines.feed(b"")
    assert kept[:2] == ["one", ""]
    assert kept[2] == "x" * 100 + CUT
    assert kept[3:] == ["��\x00", "last"]


def test_an_endless_line_does_not_fill_the_memory() -> None:
    kept = TailBuffer(9, 1 << 30)
    lines = Lines(kept.add)
    assert all(lines.feed(b"y" * 50_000) for _ in range(100))
    assert lines.feed(b"\nnext\n")
    assert [len(line) for line in kept.lines] == [LINE_BYTES + len(CUT), 4]


# a shell command -> (fault, lines read)
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "echo a; echo b >&2": ("", ["a", "b"]),
    "echo no; exit 3": ("sh ended with status 3", ["no"]),
    "kill -9 $$": ("sh ended with status -9", []),
    "echo a; sleep 600": ("sh did not end within 60 s", ["a"]),
    # A background process keeps the pipe open.
    "sleep 600 & echo a": ("sh did not end within 60 s", ["a"]),
    "exec >&- 2>&-; sleep 600": ("sh did not end within 60 s", []),
    "trap '' TERM; while :; do echo a; sleep 0.3; done": ("sh did not end within 60 s", ["a"]),
}


@pytest.mark.parametrize("script", COMMANDS)
def test_commands_end(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = HeadBuffer(1, 99) if "while" in script else HeadBuffer(9, 99)
    fault, lines = COMMANDS[script]
    monkeypatch.setattr(spark_bounded, "time", SimpleNamespace(monotonic=LateClock(kept, len(lines))))
    found = stream_command(["sh", "-c", script], lambda line: kept.add(line) or True, 60)
    assert (found, kept.lines) == (fault, lines)


class LateClock:
    """A clock that stands still until all lines have arrived, so that a busy machine has time for them. Then it is one
    second before the deadline of a command that has 60 s."""

    def __init__(self, kept: HeadBuffer, lines: int) -> None:
        self.kept, self.lines, self.arrived, self.begun = kept, lines, 0.0, False

    def __call__(self) -> float:
        if not self.begun or len(self.kept.lines) < self.lines:
            self.begun = True
            return 0.0
        self.arrived = self.arrived or time.monotonic()
        return 59.0 + time.monotonic() - self.arrived


def test_a_command_is_ended_after_enough_output() -> None:
    kept = HeadBuffer(3, 99)
    assert stream_command(["sh", "-c", "while :; do echo a; done"], kept.add, 60) == ""
    assert kept.lines == ["a"] * 3


def test_a_missing_command() -> None:
    assert stream_command(["/no/such/program"], Any, 1) == "/no/such/program: No such file or directory"


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("".join(f"line {number:02}\n" for number in range(50)))
    whole = file.read_text()
    assert read_file(file, 400, 0) == (whole, "")
    assert read_file(file, 0, 400) == (whole, "")
    text, left_out = read_file(file, 20, 20)
    # 20 bytes are two lines and a part of a third, which could be a part of a secret.
    assert text == f"line 00\nline 01\n{GAP}\nline 48\nline 49\n"
    assert left_out == "360 bytes and more between beginning and end"


def test_a_file_of_one_line_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("z" * 1000)
    assert read_file(file, 100, 100)[0] == f"{GAP}\n"


def test_paths_that_are_not_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("s")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert read_file(tmp_path / "link", 9, 9) == ("s", "")
    for name, follow in (("pipe", True), (".", True), ("none", True), ("link", False)):
        with pytest.raises(OSError, match=name):
            read_file(tmp_path / name, 9, 9, follow=follow)
