"""How the supervisors of a deployment meet: the head listens, the workers connect, all prove the deployment's key.

A worker says what it runs first, with an empty `gave_up`, which a head of release 0.1.0 does not read. A head that
reads it answers with its count of starts, and a worker that can go on with it sends its own. A peer of release 0.1.0
gets neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from vllm_spark.node import starts
from vllm_spark.node.deployment_state import GAVE_UP, WANTED
from vllm_spark.node.starts import Count
from vllm_spark.node.supervise import handshake, identity, link
from vllm_spark.node.supervise.handshake import LostError, NoKeyError, UnprovenError
from vllm_spark.node.supervise.host import LOG_INTERVAL_S, Message, RankState, RepeatedLog
from vllm_spark.node.supervise.link import Link
from vllm_spark.node.supervise.rank import Rank

RETRY_S = 2.0
# A peer needs milliseconds for its proof. With more connections than this the oldest is closed, so that idle ones
# cannot keep a peer out.
MAX_UNPROVEN = 32

# Takes the link with a peer, and what it counts (None: a peer of release 0.1.0). Returns when the link has ended.
Met = Callable[[str, Link, Count | None], Awaitable[None]]
# Writes why this rank waits.
Wait = Callable[[str], None]


class HeadGaveUpError(LostError):
    """Raised if a head of release 0.1.0 has given up."""


class Meeting:
    """The search of one rank for the others. `hello` is what this rank runs, `count` returns its count of starts."""

    def __init__(self, rank: Rank, state: RankState, count: Callable[[], Message], met: Met, wait: Wait) -> None:
        self._rank, self._state, self._count, self._met, self._wait = rank, state, count, met, wait
        self._log = RepeatedLog()
        self._both = "all" if len(rank.peers) > 1 else "both"
        self._fix = f"Fix: deploy with {self._both} hosts in -l. See docs/runbooks/pair-"
        self._unproven: list[asyncio.StreamWriter] = []
        self._here: set[str] = set()
        self.hello: Message = {}

    async def wait_for_key(self) -> None:
        """Return when this host has the key of the deployment. A pair of an older toolkit has none until a deploy."""
        while True:
            try:
                handshake.read_key(self._rank.key_file)
            except NoKeyError as missing:
                why = f"this Spark has no key for the link with {' and '.join(self._rank.partners)}: {missing}"
                if self._log(f"{why} — expected: the key that deploy installs on {self._both}. {self._fix}key.md"):
                    self._state.write(WANTED, why)
                await asyncio.sleep(RETRY_S)
            else:
                return

    # The head

    async def listen(self) -> asyncio.AbstractServer:
        """Return the server of the head. After a boot the fabric may not have its address yet."""
        rank = self._rank
        while True:
            try:
                return await asyncio.start_server(self.accept, rank.address, rank.port, limit=link.LINE_BYTES)
            except OSError as error:
                self._log(f"cannot listen on {rank.address}:{rank.port} yet: {error.strerror}")
                await asyncio.sleep(RETRY_S)

    async def wait(self, server: asyncio.AbstractServer) -> None:
        """Let workers in, without end."""
        rank = self._rank
        async with server:
            while True:
                await asyncio.sleep(LOG_INTERVAL_S)
                if missing := [peer for peer in rank.partners if peer not in self._here]:
                    others = " and ".join(missing)
                    self._say_waiting(f"waiting for {others} to connect to {rank.address}:{rank.port}")

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection to the head."""
        rank = self._rank
        address = (writer.get_extra_info("peername") or ("",))[0]
        peer = next((host for host, own in rank.peers.items() if own == address), "")
        if not peer:
            expected = " or ".join(f"{host} ({own})" for host, own in rank.peers.items())
            self._log(f"{address} connected, which is not {expected}", topic="address")
            writer.close()
            return
        self._unproven.append(writer)
        if len(self._unproven) > MAX_UNPROVEN:
            self._unproven.pop(0).close()
        try:
            worker = await link.establish(reader, writer, rank)
        except UnprovenError as unproven:
            self._say_unproven(peer, unproven)
            return
        except OSError:
            return
        finally:
            if writer in self._unproven:
                self._unproven.remove(writer)
        try:
            await self._greet(peer, worker)
        finally:
            worker.close()

    async def _greet(self, peer: str, worker: Link) -> None:
        with contextlib.suppress(LostError):
            message = await worker.expect("launch")
            counts = "gave_up" in message
            worker.send({**self.hello, "count": self._count()} if counts else self.hello)
            if self._matches(peer, message):
                theirs = starts.count_of((await worker.expect("count"))["count"]) if counts else None
                self._here.add(peer)
                try:
                    await self._met(peer, worker, theirs)
                finally:
                    self._here.discard(peer)

    # A worker

    async def find_head(self) -> None:
        """Meet the head, again and again. Raises HeadGaveUpError."""
        (peer, *_), rank = self._rank.partners, self._rank
        while True:
            address, head = rank.peers[peer], None
            try:
                opening = asyncio.open_connection(
                    address, rank.port, local_addr=(rank.address, 0), limit=link.LINE_BYTES
                )
                head = await link.establish(*await asyncio.wait_for(opening, link.READ_TIMEOUT_S), rank)
                head.send({**self.hello, "gave_up": ""})
                message = await head.expect("launch")
                if "gave_up" in message:
                    raise HeadGaveUpError(str(message["gave_up"]))
                if self._matches(peer, message):
                    theirs = starts.count_of(message["count"]) if "count" in message else None
                    await self._met(peer, head, theirs)
            except (TimeoutError, OSError) as error:
                why = getattr(error, "strerror", None) or "no answer"
                self._say_waiting(f"waiting for {peer} at {address}:{rank.port}: {why}")
            except HeadGaveUpError:
                raise
            except UnprovenError as unproven:
                self._say_unproven(peer, unproven)
            except LostError as lost:
                self._say_waiting(f"waiting for {peer}: {lost}")
            finally:
                if head:
                    head.close()
            await asyncio.sleep(RETRY_S)

    # What is said

    def _say_waiting(self, text: str) -> None:
        if self._state.now["state"] == WANTED:
            self._log(text)

    def _say_unproven(self, peer: str, unproven: UnprovenError) -> None:
        """Log that the other side has not proved the key. Ranks that run are not affected, and neither is their state.
        Every text is constant, because any process of the peer can cause it."""
        address, state = self._rank.peers[peer], self._state.now["state"]
        if state not in (WANTED, GAVE_UP):
            self._log(f"refused a connection from {address}: {unproven}; the pair is not affected", topic="unproven")
            return
        why = f"the key of deployment {self._rank.name} is not proved at {address}: {unproven}"
        text = f"waiting for {peer}: {why} — expected: the same link.key on {self._both} Sparks. {self._fix}key.md"
        if self._log(text, topic="unproven") and state == WANTED:
            self._wait(f"it waits for {peer}: {why}")

    def _matches(self, peer: str, message: Message) -> bool:
        """Return True if both ranks run the same. A difference is logged and becomes the state."""
        different = identity.differences(self.hello, message)
        if different:
            why = f"{peer} and this Spark are not one deployment: {'; '.join(different)}"
            if self._state.now["state"] == WANTED:
                self._wait(why)
            self._log(f"{why} — expected: the same on {self._both}. {self._fix}differs.md")
        return not different
