"""Read commands and files within bounds: a number of lines and bytes of the beginning and of the end, and a deadline.

A server that has run for a month has a log of gigabytes, and nvidia-smi may hang for ever. Standard library alone.
"""

from __future__ import annotations

import os
import selectors
import signal
import stat
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import CUT

LINE_BYTES = 64 * 1024
READ_BYTES = 64 * 1024
GAP = "[vllm-spark: the lines between these two are left out]"
# (lines, bytes)
Bound = tuple[int, int]
# Accepts a line and returns True if there is room for more.
Add = Callable[[str], bool]


class HeadBuffer:
    """The first lines of a text. `add` returns True if there is room for more."""

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self.lines: list[str] = []
        self.full = False
        self._max_lines, self._room = max_lines, max_bytes

    def add(self, line: str) -> bool:
        self.full = len(self.lines) >= self._max_lines or len(line) > self._room
        if not self.full:
            self.lines.append(line)
            self._room -= len(line)
        return not self.full


class TailBuffer:
    """The last lines of a text. `add` always returns True."""

    def __init__(self, max_lines: int, max_bytes: int) -> None:
        self.lines: deque[str] = deque()
        self.left_out = 0
        self._max_lines, self._room = max_lines, max_bytes

    def add(self, line: str) -> bool:
        self.lines.append(line)
        self._room -= len(line)
        while len(self.lines) > self._max_lines or (self._room < 0 and len(self.lines) > 1):
            self._room += len(self.lines.popleft())
            self.left_out += 1
        return True


class HeadTailBuffer:
    """The first and the last lines of a text that is read once."""

    def __init__(self, head: Bound, tail: Bound) -> None:
        self._head, self._tail = HeadBuffer(*head), TailBuffer(*tail)

    def add(self, line: str) -> bool:
        return self._tail.add(line) if self._head.full or not self._head.add(line) else True

    def text(self) -> tuple[str, str]:
        """Return (text, description of the part that was left out)."""
        left_out = f"{self._tail.left_out} lines between beginning and end" if self._tail.left_out else ""
        gap = [GAP] if left_out else []
        return as_text([*self._head.lines, *gap, *self._tail.lines]), left_out


def join(head: Iterable[str], tail: Iterable[str]) -> tuple[str, str]:
    """Return (text, description of the part that was left out) from the first and the last lines of one text, which
    may overlap."""
    first, last = list(head), list(tail)
    for place in range(len(first)):
        if first[place:] == last[: len(first) - place]:
            return as_text([*first[:place], *last]), ""
    return as_text([*first, GAP, *last]), "lines between beginning and end"


def as_text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def stream_command(argv: Sequence[str], add: Add, timeout_s: float) -> str:
    """Pass each line of a command's output, including its errors, to `add` until that returns False. Returns the fault,
    or an empty text."""
    try:
        process = subprocess.Popen(  # noqa: S603  the argv is the module's own
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
        )
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    assert process.stdout is not None  # noqa: S101  stdout=PIPE
    deadline = time.monotonic() + timeout_s
    timed_out = f"{argv[0]} did not end within {timeout_s:.0f} s"
    lines = Lines(add)
    status = None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(process.stdout.fileno(), READ_BYTES)
                if not lines.feed(data):
                    return ""  # the bounds are reached
                if not data:
                    # The command may have closed its output and still run.
                    status = process.wait(max(0.0, deadline - time.monotonic()))
                    return f"{argv[0]} ended with status {status}" if status else ""
        return timed_out
    except subprocess.TimeoutExpired:
        return timed_out
    finally:
        process.stdout.close()
        if status is None:
            # With its descendants. A process that cannot be killed, for example in a hanging driver, is not awaited.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Lines:
    """Converts bytes to whole lines and passes them to `add`; of a line that is too long only its beginning."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> bool:
        """Process the next bytes; empty bytes are the end. Returns True if there is room for more lines."""
        if not data:
            return not self._rest or self._pass(self._rest)
        *whole, self._rest = (self._rest + data).split(b"\n")
        room = all(self._pass(line) for line in whole)
        if len(self._rest) > LINE_BYTES and not self._skipping:
            room = room and self._pass(self._rest)
            self._skipping = True
        if self._skipping:
            self._rest = b""
        return room

    def _pass(self, line: bytes) -> bool:
        if self._skipping:
            self._skipping = False
            return True
        text = line[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        return self._add(text + CUT if len(line) > LINE_BYTES else text)


def read_file(path: str | os.PathLike[str], first: int, last: int, follow: bool = True) -> tuple[str, str]:
    """Return (text, description of the part that was left out) of a file: all of it, or its first and last bytes at
    whole lines. Raises OSError; with follow=False also for a symbolic link, which may lead out of the container that
    contains it."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(22, "not a regular file", path)
        data = file.read(first + last + 1)
        if len(data) <= first + last:
            return data.decode("utf-8", "replace"), ""
        end = max(first, file.seek(0, os.SEEK_END) - last)
        file.seek(end)
        # Cut at ends of lines: a secret must not be cut in two.
        head = data[: data.rfind(b"\n", 0, first) + 1]
        tail = file.read(last).partition(b"\n")[2]
    left_out = f"{end - first} bytes and more between beginning and end"
    return f"{head.decode('utf-8', 'replace')}{GAP}\n{tail.decode('utf-8', 'replace')}", left_out
