"""HTTP over a unix socket: the one way in which programs of a Spark reach a closed engine, and Docker.

plugins/module_utils/spark_unix_http.py is a link to this file. Standard library alone.
"""

from __future__ import annotations

import http.client
import os
import socket

# What stands before the path of a socket in the URL of an engine.
SCHEME = "unix:"


def connect(path: str, timeout_s: float) -> socket.socket:
    """Return a connection to a socket. Raises OSError, also if a link is in its place: the engine may write in the
    folder of its socket, and a link would lead root's requests to the socket of another server."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            # The number of the descriptor leads to this very file, whatever has its name by now.
            connection.connect(f"/proc/self/fd/{place}")
        finally:
            os.close(place)
    except BaseException:
        connection.close()
        raise
    return connection


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to the server of a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._timeout_s = timeout_s

    def connect(self) -> None:
        """Connect to the socket. Raises OSError."""
        self.sock = connect(self._path, self._timeout_s)
