"""OpenSSH's server on the loopback device, where a machine has it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import loopback
from waiting import LIMIT_S

SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ['PATH']}")
KINDS = ("ed25519", "ecdsa", "rsa")


@contextmanager
def running(folder: Path, public_key: Path, *configuration: str) -> Iterator[int]:
    """Yield the port of a server that accepts the key of this user. Its own keys are `host_KIND` in the folder. Skips
    the test where it cannot run."""
    if SSHD is None:
        pytest.skip("no sshd on this machine; molecule/fabric covers OpenSSH")
    folder.mkdir()
    for kind in KINDS:
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", folder / f"host_{kind}"], check=True)
    port = loopback.held_port()
    shutil.copy(public_key, folder / "authorized_keys")
    lines = [
        *(f"Port {port}", "ListenAddress 127.0.0.1", "UsePAM no", "StrictModes no", "PidFile none"),
        *(f"AuthorizedKeysFile {folder}/authorized_keys", "PermitRootLogin prohibit-password"),
        *(f"HostKey {folder}/host_{kind}" for kind in KINDS),
        *configuration,
    ]
    (folder / "sshd_config").write_text("".join(f"{line}\n" for line in lines))
    daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.PIPE, text=True)
    try:
        _wait_for(port, daemon)
        yield port
    finally:
        daemon.terminate()
        daemon.wait(LIMIT_S)


def _wait_for(port: int, daemon: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            stderr = daemon.stderr.read().strip() if daemon.stderr else ""
            # The setup of the package or the start of the service creates its user and folder. Other ends are faults.
            if "rivilege separation" in stderr:
                pytest.skip(f"sshd does not run here: {stderr}")
            pytest.fail(f"sshd ended: {stderr}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail(f"sshd does not listen on {port}")
