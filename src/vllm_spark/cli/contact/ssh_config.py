"""The address, user and port that OpenSSH would use for a name: an alias of ~/.ssh/config, as NVIDIA Sync writes it."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

TIMEOUT_S = 10


class Destination(NamedTuple):
    """Where a name leads. `user` is the local user if no configuration names one."""

    host: str
    user: str
    port: int


def resolve(name: str) -> Destination | None:
    """Return what `ssh -G` says of a name. None without OpenSSH, or if its configuration is faulty."""
    try:
        done = subprocess.run(  # noqa: S603  no shell; a name that starts with "-" follows "--"
            ["ssh", "-G", "--", name],  # noqa: S607  the ssh of PATH is the one that Ansible uses
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def parse(text: str) -> Destination | None:
    """Return the destination in the output of `ssh -G`, or None if a field is missing."""
    fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    if not {"hostname", "user", "port"} <= fields.keys() or not fields["port"].isdigit():
        return None
    return Destination(fields["hostname"], fields["user"], int(fields["port"]))
