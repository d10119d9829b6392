"""The loopback device for tests: free ports, ports that refuse connections, servers, and closing a listener."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from threading import Thread
from typing import TypeVar

ADDRESS = "127.0.0.1"
Server = TypeVar("Server", bound=BaseServer)


def free_port() -> int:
    """Return a free port for a server that starts at once. A later call may return the same port."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


@contextmanager
def refusing_port() -> Iterator[int]:
    """Yield a port that refuses connections. It is bound but not listened on, so no other server can take it."""
    with socket.socket() as bound:
        bound.bind((ADDRESS, 0))
        yield int(bound.getsockname()[1])


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Serve in a thread while the context is open."""
    with server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def close_listener(listener: socket.socket, thread: Thread) -> None:
    """Close a listener whose thread waits in `accept`.

    Without the shutdown the thread would keep the socket open, and could accept a connection of another test.
    """
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()
