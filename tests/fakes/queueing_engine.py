"""A stand-in for the scheduler of an engine: sequences, a queue by priority, and steps that many sequences make longer.

It has no model and no GPU, and the times of its steps are made up. What it has of vLLM: at most `max_sequences` run at
once. A step gives each of them a token, and reads at most `prompt_tokens` of prompts. Who waits is taken by
X-Vllm-Priority and arrival. Nobody is taken out again.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sequence:
    """A request: tokens of the prompt to read, tokens to write, and those that the client has not yet."""

    unread: int
    unwritten: int
    written: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    gone: bool = False


@dataclass(slots=True)
class QueueingEngine:
    """The server. A step takes `step_s`, and more for each running sequence and for each token of a prompt."""

    max_sequences: int = 16
    prompt_tokens: int = 2048
    step_s: float = 0.020
    sequence_s: float = 0.0005
    prompt_s: float = 0.00025
    waiting: list[tuple[int, int, Sequence]] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    arrivals: Iterator[int] = field(default_factory=itertools.count)
    work: asyncio.Event = field(default_factory=asyncio.Event)
    stepping: asyncio.Task[None] | None = None

    async def start_unix(self, path: str) -> asyncio.Server:
        """Listen on a unix socket and begin to step."""
        self.stepping = asyncio.create_task(self._steps())
        return await asyncio.start_unix_server(self._serve, path)

    async def _steps(self) -> None:
        while True:
            await self.work.wait()
            self.running = [one for one in self.running if one.unwritten and not one.gone]
            while self.waiting and len(self.running) < self.max_sequences:
                self.running.append(heapq.heappop(self.waiting)[2])
            if self.running:
                await self._step()
            else:
                self.work.clear()

    async def _step(self) -> None:
        left = self.prompt_tokens
        for one in self.running:
            read = min(one.unread, left)
            one.unread, left = one.unread - read, left - read
        read_s = self.prompt_s * (self.prompt_tokens - left)
        await asyncio.sleep(self.step_s + self.sequence_s * len(self.running) + read_s)
        for one in self.running:
            if not one.unread:
                one.unwritten -= 1
                one.written.release()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
            headers = dict(line.split(": ", 1) for line in lines[1:] if line)
            if not (length := int(headers.get("content-length", 0))):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
                return
            body = json.loads(await reader.readexactly(length))
            words = sum(len(message["content"].split()) for message in body["messages"])
            sequence = Sequence(max(words, 1), body["max_tokens"])
            heapq.heappush(self.waiting, (int(headers.get("x-vllm-priority", 0)), next(self.arrivals), sequence))
            self.work.set()
            try:
                await _answer(sequence, body["max_tokens"], writer)
            finally:
                sequence.gone = True


async def _answer(sequence: Sequence, tokens: int, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for _ in range(tokens):
        await sequence.written.acquire()
        writer.write(b"data: " + json.dumps({"choices": [{"delta": {"content": "word "}}]}).encode() + b"\n\n")
        await writer.drain()
    writer.write(b"data: [DONE]\n\n")
    await writer.drain()
