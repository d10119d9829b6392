"""Type a command at a terminal of a container, as its user, with the password wherever one is asked.

    type.py TRANSCRIPT CONTAINER USER COMMAND [NAME=VALUE]...   the password on stdin

It prints the output, and adds command, output, seconds and lines to the transcript. Its exit status is that of the
command.
"""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from pathlib import Path

PROMPT = re.compile(rb"password[^\n]*: ?$", re.IGNORECASE)
LIMIT_S = 1500.0
# A program drops what was typed before it reads, so the password waits until nothing more comes.
QUIET_S = 0.5


def at_a_terminal(argv: list[str], password: str) -> tuple[int, str]:
    """Return the exit status of a command and what its terminal showed."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(argv[0], argv)  # noqa: S606  no shell
    output, deadline = b"", time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], QUIET_S)[0]:
            if PROMPT.search(output):
                os.write(terminal, f"{password}\r".encode())
            continue
        try:
            output += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    else:
        os.close(terminal)  # the command gets SIGHUP
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, output.decode(errors="replace").replace("\r\n", "\n")


def main() -> int:
    transcript, container, user, command, *variables = sys.argv[1:]
    begun = time.monotonic()
    given = [word for each in variables for word in ("--env", each)]
    words = ["docker", "exec", "-it", "--user", user, "--workdir", f"/home/{user}", *given, container]
    status, output = at_a_terminal([*words, "bash", "-c", command], sys.stdin.readline().rstrip("\n"))
    shown = f"{output.rstrip()}\n[status {status}, {time.monotonic() - begun:.0f} s, {len(output.splitlines())} lines]"
    with Path(transcript).open("a", encoding="utf-8") as file:
        file.write(f"\n$ {command}\n{shown}\n")
    print(shown)
    return status


if __name__ == "__main__":
    sys.exit(main())
