"""Waiting for the server of this rank."""

from __future__ import annotations

import asyncio
import contextlib

TIMEOUT_S = 10.0


async def wait_for_port(address: str, path: str | None) -> None:
    """Return when host:port accepts a connection or, with a path, answers it with 200."""
    host, _, port = address.rpartition(":")
    while True:
        # A line that is too long for the reader is a ValueError.
        with contextlib.suppress(OSError, ValueError, asyncio.TimeoutError):
            if await asyncio.wait_for(_port_answers(host, int(port), path), TIMEOUT_S):
                return
        await asyncio.sleep(0.5)


async def _port_answers(host: str, port: int, path: str | None) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if path is None:
            return True
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    finally:
        writer.close()
