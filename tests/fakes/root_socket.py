"""A socket that starts root's side of the program which starts models for requests, as systemd does."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from vllm_spark.core import paths

PROGRAM = (sys.executable, "-I", "-B", str(paths.NODE / "edge_switch.py"))


class RootSocket:
    """The socket, with options of the program."""

    def __init__(self, path: Path, options: Sequence[str]) -> None:
        self.argv = [*PROGRAM, "--as-root", *options]
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection:
                    subprocess.Popen(self.argv, stdin=connection, stdout=connection)

    def close(self) -> None:
        """End the thread. A test may have done so before."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
