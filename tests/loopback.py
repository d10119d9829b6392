"""Ports of the loopback device, for tests: one that is free, one where nobody listens, and a listener's end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

ADDRESS = "127.0.0.1"


def free_port() -> int:
    """For a server that starts at once: the next one may get it as well."""
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        return int(taken.getsockname()[1])


@contextmanager
def nobody() -> Iterator[int]:
    """A port that refuses connections. It is bound and not listened on, so that no other server gets it meanwhile."""
    with socket.socket() as held:
        held.bind((ADDRESS, 0))
        yield int(held.getsockname()[1])


def end(listener: socket.socket, thread: Thread) -> None:
    """Close a listener whose thread waits in `accept`. Closed alone, it would still be listened on by the thread, which
    could take another test's connection."""
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()
