"""Waiting for the server of this rank."""

from __future__ import annotations

import asyncio
import contextlib

TIMEOUT_S = 10.0
# What stands before the path of a unix socket.
UNIX = "unix:"


async def wait_for_server(address: str, path: str | None) -> None:
    """Return when `host:port` or `unix:SOCKET` accepts a connection or, with a path, answers it with 200."""
    while True:
        # A line that is too long for the reader is a ValueError.
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
            if await asyncio.wait_for(_answers(address, path), TIMEOUT_S):
                return
        await asyncio.sleep(0.5)


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith(UNIX):
        return await asyncio.open_unix_connection(address.removeprefix(UNIX))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def _answers(address: str, path: str | None) -> bool:
    reader, writer = await _connect(address)
    try:
        if path is None:
            return True
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    finally:
        writer.close()
