"""A server that answers every request with the same bytes, piece by piece: what a filter of the edge sees is known."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

STREAM = "text/event-stream; charset=utf-8"


@dataclass(slots=True)
class RawEngine:
    """The server. `headers` are sent beside the usual ones. With `turns` a piece waits for its release, so that two
    pieces never arrive as one. `cut`: the connection ends behind the last piece."""

    pieces: Sequence[bytes] = ()
    kind: str = "application/json"
    headers: str = ""
    turns: threading.Semaphore | None = None
    cut: bool = False

    async def start_unix(self, path: str) -> asyncio.Server:
        """Listen on a unix socket."""
        return await asyncio.start_unix_server(self._serve, path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {self.kind}\r\n{self.headers}Transfer-Encoding: chunked\r\n\r\n"
            writer.write(head.encode())
            for piece in self.pieces:
                while self.turns and not self.turns.acquire(blocking=False):
                    await asyncio.sleep(0.005)
                writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
                await writer.drain()
            writer.write(b"" if self.cut else b"0\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def document(usage: dict[str, Any] | None = None, text: str = "", **more: Any) -> dict[str, Any]:
    """Return an answer of /v1/chat/completions in the order of vLLM's fields."""
    message = {"role": "assistant", "content": text}
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "message": message}], "usage": usage, **more}


def event(one: dict[str, Any], name: str = "") -> bytes:
    """Return a server-sent event as vLLM writes it."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(one).encode() + b"\n\n"


def chunk(text: str, **more: Any) -> bytes:
    """Return an event of a chat completion."""
    return event({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": text}}], **more})


def stream(texts: Iterable[str], usage: dict[str, Any] | None = None) -> list[bytes]:
    """Return the events of a stream, with `usage` in the last one if the client has asked for it."""
    last = [event({"id": "chatcmpl-1", "choices": [], "usage": usage})] if usage else []
    return [*(chunk(text) for text in texts), *last, b"data: [DONE]\n\n"]
