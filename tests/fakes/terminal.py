"""A person at a terminal: a command runs on a pseudo-terminal, and each question gets its answer typed."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from collections.abc import Mapping, Sequence

from waiting import LIMIT_S

QUIET_S = 0.5


def typed(argv: Sequence[str], environment: Mapping[str, str], answers: Mapping[str, str]) -> tuple[int, str]:
    """Run a command and answer its questions in their order. `answers`: end of a question -> what is typed; "\\x03" is
    Ctrl-C. Returns the exit status and everything that the terminal showed."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(argv[0], argv, environment)  # noqa: S606  no shell
    output, rest, deadline = b"", list(answers.items()), time.monotonic() + 5 * LIMIT_S
    while time.monotonic() < deadline:
        # A program that has printed its question may not read yet, and then loses what is typed.
        if not select.select([terminal], [], [], QUIET_S)[0]:
            if rest and output.rstrip().endswith(rest[0][0].encode()):
                answer = rest.pop(0)[1]
                os.write(terminal, answer.encode() if answer == "\x03" else f"{answer}\r".encode())
            continue
        try:
            output += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    else:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert [question for question, _ in rest] == [], output.decode()
    return status, output.decode().replace("\r\n", "\n")
