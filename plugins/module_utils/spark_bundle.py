"""The texts of a support bundle on one host: read within bounds of size and time, masked, and packed. Writes no file.

A server that has run for a month has a log of gigabytes, and nvidia-smi may hang for ever. Standard library alone.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import platform
import select
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import (
    Secrets,
    env_names,
    env_pairs,
    in_document,
    in_script,
)

FORMAT = 1
# The texts of one host, before they are compressed to about a tenth.
MAX_BYTES = 16 << 20
# Limit of all commands together, because an operator waits for the result, and of one command.
DEADLINE_S = 150.0
COMMAND_TIMEOUT_S = 20.0

KIB = 1024
READ_BYTES = 64 * KIB
# Bytes of the beginning and of the end of a text.
Bounds = tuple[int, int]
JOURNAL: Bounds = (512 * KIB, 1024 * KIB)
SHORT: Bounds = (64 * KIB, 256 * KIB)
OUTPUT: Bounds = (256 * KIB, 256 * KIB)
# The journal's newest lines, which it finds without reading the others.
JOURNAL_LINES = 8000
# journalctl explains in at most so many lines why it has no lines to show.
MESSAGE_LINES = 3
GAP = "[vllm-spark: the lines between these two are left out]\n"
SECRET_FILES = ("env", "session.env")


def whole_lines(head: bytes, tail: bytes, complete: bool) -> str:
    """Return a text from its two ends. Incomplete ends are cut at ends of lines: a secret must not be cut in two."""
    if complete:
        return (head + tail).decode("utf-8", "replace")
    head, tail = head[: head.rfind(b"\n") + 1], tail.partition(b"\n")[2]
    return f"{head.decode('utf-8', 'replace')}{GAP}{tail.decode('utf-8', 'replace')}"


def run(argv: Sequence[str], bounds: Bounds, timeout_s: float) -> tuple[str, str]:
    """Return both ends of a command's output, its errors included, and its fault. The command ends when the beginning
    is read if no end is wanted."""
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
        return "", f"{argv[0]}: {error.strerror}"
    assert process.stdout is not None  # noqa: S101  stdout=PIPE
    deadline, (first, last) = time.monotonic() + timeout_s, bounds
    head, tail, complete, status, fault = b"", b"", True, None, f"{argv[0]} did not end within {timeout_s:.0f} s"
    while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data = os.read(process.stdout.fileno(), READ_BYTES)
        if not data:
            # The command may have closed its output and still run.
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(max(0.0, deadline - time.monotonic()))
                fault = f"{argv[0]} ended with status {status}" if status else ""
            break
        room = first - len(head)
        head, tail = head + data[:room], tail + data[room:]
        if len(tail) > last:
            tail, complete = tail[-last:] if last else b"", False
            if not last:
                fault = ""
                break
    process.stdout.close()
    if status is None:
        # With its descendants. A process that cannot be killed, for example in a hanging driver, is not awaited.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return whole_lines(head, tail, complete), fault


def read_file(path: str | os.PathLike[str], bounds: Bounds, follow: bool = True) -> str:
    """Return both ends of a file. Raises OSError; with follow=False also for a symbolic link, which may lead out of the
    container that contains it."""
    first, last = bounds
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(22, "not a regular file", path)
        head, left_out = file.read(first), os.fstat(handle).st_size - first - last
        if left_out > 0:
            file.seek(-last, os.SEEK_END)
        return whole_lines(head, file.read(last), left_out <= 0)


def overlapped(oldest: str, newest: str) -> str:
    """Return the text of which these are the beginning and the end. They overlap where one line with a time, which has
    microseconds, is in both: the other lines of a message may be in many."""
    line = next((line for line in newest.splitlines() if line[:1].isdigit()), "")
    place = oldest.find(line) if line else -1
    return f"{oldest}{GAP}{newest}" if place < 0 else oldest[:place] + newest[newest.find(line) :]


class Bundle:
    """Texts by their path in the bundle, and notes about texts that could not be read."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.notes: list[str] = []
        self.deployments: dict[str, dict[str, str]] = {}
        self.secrets = Secrets()
        self._size = 0
        self._deadline = time.monotonic() + DEADLINE_S

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def put(self, path: str, text: str) -> None:
        """Store a text, unless it is empty or the bundle is full."""
        if self._size + len(text) > MAX_BYTES:
            self.note(f"{path}: left out, the bundle is {MAX_BYTES >> 20} MiB already")
        elif text.strip():
            self._size += len(text)
            self.files[path] = text

    def put_json(self, path: str, document: Any) -> None:
        self.secrets.add(in_document(document))
        self.put(path, json.dumps(document, indent=2, sort_keys=True) + "\n")

    def output(self, *argv: str, bounds: Bounds = OUTPUT) -> tuple[str, bool]:
        """Return the output of a command, and whether it succeeded. Its fault becomes a note."""
        text, fault = "", f"not run, the {DEADLINE_S:.0f} s for this host are over"
        if (left_s := self._deadline - time.monotonic()) > 0:
            text, fault = run(argv, bounds, min(COMMAND_TIMEOUT_S, left_s))
        if fault:
            self.note(f"`{' '.join(argv)}`: {fault}")
        return text, not fault

    def commands(self, path: str, *commands: Sequence[str], bounds: Bounds = OUTPUT) -> None:
        """Store the outputs of commands, each below its command line."""
        self.put(path, "\n".join(f"$ {' '.join(argv)}\n{self.output(*argv, bounds=bounds)[0]}" for argv in commands))

    def file(self, path: str, source: str, bounds: Bounds = OUTPUT, follow: bool = True) -> None:
        """Store a file; of a file of secrets only the names."""
        try:
            text = read_file(source, bounds, follow)
        except FileNotFoundError:
            return
        except OSError as error:
            self.note(f"{source}: {error.strerror}")
            return
        name = os.path.basename(source)
        if name in SECRET_FILES:
            self.secrets.add(env_pairs(text))
            text = env_names(text)
        elif name == "launch":
            self.secrets.add(in_script(text))
        self.put(path, text)

    def journal(self, path: str, *matches: str, bounds: Bounds = SHORT) -> bool:
        """Store the journal's matching lines from both ends. Returns whether there are any."""
        argv = ("journalctl", "--quiet", "--no-pager", "--utc", "--output", "short-iso-precise")
        text, good = self.output(*argv, "--lines", str(JOURNAL_LINES), *matches, bounds=bounds)
        if not good and text.count("\n") <= MESSAGE_LINES:
            # The boot or the journal does not exist, or the user may not read it.
            self.notes += [f"journalctl: {line}" for line in text.splitlines()]
            return False
        if text.count("\n") >= JOURNAL_LINES or GAP in text:
            oldest, _ = self.output(*argv, *matches, bounds=(bounds[0], 0))
            text = overlapped(oldest.removesuffix(GAP), text.rpartition(GAP)[2])
        self.put(path, text)
        return bool(text)

    def packed(self) -> str:
        """Return everything without secrets: JSON, compressed by gzip, in base64."""
        for text in self.files.values():
            self.secrets.learn(text)
        masked = self.secrets.masker()
        document = {
            "files": {path: masked(text) for path, text in self.files.items()},
            "manifest": {
                "format": FORMAT,
                "host": platform.node(),
                "time": time.time(),
                "deployments": self.deployments,
                "notes": [masked(note) for note in self.notes],
                "weak_secrets": self.secrets.weak(),
            },
        }
        text = json.dumps(document, ensure_ascii=False)
        return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6)).decode()
