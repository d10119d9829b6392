"""The loopback device for tests: held ports, ports that refuse connections, servers, and closing a listener."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from threading import Thread
from typing import TypeVar

ADDRESS = "127.0.0.1"
Server = TypeVar("Server", bound=BaseServer)
# The sockets of held ports, until this process ends.
_HELD: list[socket.socket] = []


def held_port() -> int:
    """Return a port for a server of this test, in any process and on any address of this machine.

    This process keeps it bound and does not listen, so the kernel gives it to nobody who asks for any port. A server
    that sets SO_REUSEADDR, as servers do, can still listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    _HELD.append(held)
    return int(held.getsockname()[1])


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
