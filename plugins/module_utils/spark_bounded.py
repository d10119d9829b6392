"""Commands and files, read within bounds: so many lines and bytes of the beginning and of the end, and by a deadline.

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
from contextlib import suppress

from ansible.module_utils.spark_secrets import CUT

LINE_BYTES = 64 * 1024
READ_BYTES = 64 * 1024
GAP = "[vllm-spark: the lines between these two are left out]"


class First:
    """The first lines of a text. `take` returns whether there is room for more."""

    def __init__(self, lines, size):
        self.lines = []
        self.full = False
        self._most, self._room = lines, size

    def take(self, line):
        self.full = len(self.lines) >= self._most or len(line) > self._room
        if not self.full:
            self.lines.append(line)
            self._room -= len(line)
        return not self.full


class Last:
    """The last lines of a text."""

    def __init__(self, lines, size):
        self.lines = deque()
        self.left_out = 0
        self._most, self._room = lines, size

    def take(self, line):
        self.lines.append(line)
        self._room -= len(line)
        while len(self.lines) > self._most or (self._room < 0 and len(self.lines) > 1):
            self._room += len(self.lines.popleft())
            self.left_out += 1
        return True


class Ends:
    """The first and the last lines of a text that is read once. Each bound is (lines, bytes)."""

    def __init__(self, first, last):
        self._first, self._last = First(*first), Last(*last)

    def take(self, line):
        return self._last.take(line) if self._first.full or not self._first.take(line) else True

    def text(self):
        """(text, what was left out of it)."""
        left_out = f"{self._last.left_out} lines between beginning and end" if self._last.left_out else ""
        gap = [GAP] if left_out else []
        return shown([*self._first.lines, *gap, *self._last.lines]), left_out


def join(first, last):
    """(text, what was left out) of the first and the last lines of one text, which may overlap."""
    first, last = list(first), list(last)
    for place in range(len(first)):
        if first[place:] == last[: len(first) - place]:
            return shown([*first[:place], *last]), ""
    return shown([*first, GAP, *last]), "lines between beginning and end"


def shown(lines):
    return "".join(f"{line}\n" for line in lines)


def run(words, take, timeout_s):
    """Give each line of a command's output, errors among it, to `take` until that returns False. Returns what went
    wrong, or an empty text."""
    try:
        process = subprocess.Popen(  # noqa: S603  the words are the module's own
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
        )
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    deadline = time.monotonic() + timeout_s
    late = f"{words[0]} did not end within {timeout_s:.0f} s"
    lines = Lines(take)
    status = None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                data = os.read(process.stdout.fileno(), READ_BYTES)
                if not lines.feed(data):
                    return ""  # it has said enough
                if not data:
                    # It may have closed its output and go on.
                    status = process.wait(max(0.0, deadline - time.monotonic()))
                    return f"{words[0]} ended with status {status}" if status else ""
        return late
    except subprocess.TimeoutExpired:
        return late
    finally:
        process.stdout.close()
        if status is None:
            # With all that it started. One that cannot be killed, as when a driver hangs, is not waited for.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Lines:
    """Bytes in, whole lines out; of a line that is too long its beginning."""

    def __init__(self, take):
        self._take = take
        self._rest = b""
        self._skipping = False

    def feed(self, data):
        """Returns whether more is wanted. No data is the end."""
        if not data:
            return not self._rest or self._put(self._rest)
        *whole, self._rest = (self._rest + data).split(b"\n")
        wanted = all(self._put(line) for line in whole)
        if len(self._rest) > LINE_BYTES and not self._skipping:
            wanted = wanted and self._put(self._rest)
            self._skipping = True
        if self._skipping:
            self._rest = b""
        return wanted

    def _put(self, line):
        if self._skipping:
            self._skipping = False
            return True
        text = line[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        return self._take(text + CUT if len(line) > LINE_BYTES else text)


def read_file(path, first, last, follow=True):
    """(text, what was left out) of a file: all of it, or its first and last bytes at whole lines. Raises OSError; with
    follow=False also for a symbolic link, which may lead out of the container that it lies in."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(22, "not a regular file", path)
        data = file.read(first + last + 1)
        if len(data) <= first + last:
            return data.decode("utf-8", "replace"), ""
        end = max(first, file.seek(0, os.SEEK_END) - last)
        file.seek(end)
        # Cut at ends of lines: a secret may not be cut in two.
        head = data[: data.rfind(b"\n", 0, first) + 1]
        tail = file.read(last).partition(b"\n")[2]
    left_out = f"{end - first} bytes and more between beginning and end"
    return f"{head.decode('utf-8', 'replace')}{GAP}\n{tail.decode('utf-8', 'replace')}", left_out
