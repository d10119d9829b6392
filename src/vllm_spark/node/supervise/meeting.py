"""How the two supervisors of a pair meet: the head listens, the worker connects, both prove the deployment's key."""

from __future__ import annotations

import asyncio
import contextlib

from vllm_spark.node.deployment_state import WANTED
from vllm_spark.node.supervise import handshake, identity, link
from vllm_spark.node.supervise.handshake import LostError, NoKeyError, UnprovenError
from vllm_spark.node.supervise.host import LOG_INTERVAL_S, Message, RepeatedLog, State
from vllm_spark.node.supervise.link import GaveUpError, Link
from vllm_spark.node.supervise.rank import Rank

RETRY_S = 2.0
# A peer needs milliseconds for its proof. With more connections than this the oldest is closed, so that idle ones
# cannot keep a peer out.
MAX_UNPROVEN = 32
FIX = "Fix: deploy with both hosts in -l. See docs/runbooks/pair-key.md"


class Meeting:
    """The search of one rank for the other. `hello` is what this rank runs."""

    def __init__(self, rank: Rank, state: State) -> None:
        self._rank = rank
        self._state = state
        self._log = RepeatedLog()
        self._unproven: list[asyncio.StreamWriter] = []
        self.hello: Message = {}
        # Links of a head whose other side has proved the key and runs the same.
        self.links: asyncio.Queue[Link] = asyncio.Queue()
        self.reported = asyncio.Event()

    async def wait_for_key(self) -> None:
        """Return when this host has the key of the deployment. A pair of an older toolkit has none until a deploy."""
        while True:
            try:
                handshake.read_key(self._rank.key_file)
            except NoKeyError as missing:
                why = f"this Spark has no key for the link with {self._rank.peer_host}: {missing}"
                if self._log(f"{why} — expected: the key that deploy installs on both. {FIX}"):
                    self._state.write(WANTED, why)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def connect(self) -> Link:
        """Return the link with the other rank. Waits for it without a limit. Raises GaveUpError."""
        self._state.write(WANTED, f"it waits for {self._rank.peer_host}")
        if self._rank.rank == 0:
            return await self._await_worker()
        return await self._find_head()

    async def listen(self) -> asyncio.AbstractServer:
        """Return the server of the head. After a boot the fabric may not have its address yet."""
        rank = self._rank
        while True:
            try:
                return await asyncio.start_server(self.accept, rank.address, rank.port, limit=link.LINE_BYTES)
            except OSError as error:
                self._log(f"cannot listen on {rank.address}:{rank.port} yet: {error.strerror}")
                await asyncio.sleep(RETRY_S)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection to the head."""
        rank = self._rank
        address = (writer.get_extra_info("peername") or ("",))[0]
        if address != rank.peer:
            self._log(f"{address} connected, which is not {rank.peer_host} ({rank.peer})", topic="address")
            writer.close()
            return
        self._unproven.append(writer)
        if len(self._unproven) > MAX_UNPROVEN:
            self._unproven.pop(0).close()
        try:
            worker = await link.establish(reader, writer, rank)
        except UnprovenError as unproven:
            self._say_unproven(unproven)
            return
        except OSError:
            return
        finally:
            if writer in self._unproven:
                self._unproven.remove(writer)
        await self._greet(worker)

    async def _greet(self, worker: Link) -> None:
        try:
            message = await worker.expect("launch")
        except LostError:
            worker.close()
            return
        await worker.send(self.hello)
        if "gave_up" in self.hello:
            self.reported.set()
            worker.close()
        elif self._matches(message):
            self.links.put_nowait(worker)
        else:
            worker.close()

    async def _await_worker(self) -> Link:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(self.links.get(), LOG_INTERVAL_S)
            self._log(f"waiting for {self._rank.peer_host} to connect to {self._rank.address}:{self._rank.port}")

    async def _find_head(self) -> Link:
        rank = self._rank
        while True:
            try:
                opening = asyncio.open_connection(
                    rank.peer, rank.port, local_addr=(rank.address, 0), limit=link.LINE_BYTES
                )
                head = await link.establish(*await asyncio.wait_for(opening, link.READ_TIMEOUT_S), rank)
                await head.send(self.hello)
                message = await head.expect("launch")
                if "gave_up" in message:
                    raise GaveUpError(str(message["gave_up"]))
                if self._matches(message):
                    return head
                head.close()
            except (TimeoutError, OSError) as error:
                why = getattr(error, "strerror", None) or "no answer"
                self._log(f"waiting for {rank.peer_host} at {rank.peer}:{rank.port}: {why}")
            except GaveUpError:
                raise
            except UnprovenError as unproven:
                self._say_unproven(unproven)
            except LostError as lost:
                self._log(f"waiting for {rank.peer_host}: {lost}")
            await asyncio.sleep(RETRY_S)

    def _say_unproven(self, unproven: UnprovenError) -> None:
        """Log that the other side has not proved the key. A pair that runs is not affected, and neither is its state.
        Every text is constant, because any process of the peer can cause it."""
        rank = self._rank
        if self._state.now["state"] != WANTED:
            self._log(f"refused a connection from {rank.peer}: {unproven}; the pair is not affected", topic="unproven")
            return
        why = f"the key of deployment {rank.name} is not proved at {rank.peer}: {unproven}"
        if self._log(
            f"waiting for {rank.peer_host}: {why} — expected: the same link.key on both Sparks. {FIX}", topic="unproven"
        ):
            self._state.write(WANTED, f"it waits for {rank.peer_host}: {why}")

    def _matches(self, message: Message) -> bool:
        """Return True if both ranks run the same. A difference is logged and becomes the state."""
        different = identity.differences(self.hello, message)
        if different:
            why = f"{self._rank.peer_host} and this Spark are not one deployment: {'; '.join(different)}"
            self._state.write(WANTED, why)
            self._log(
                f"{why} — expected: the same on both. Fix: deploy with both hosts in -l. "
                "See docs/runbooks/pair-differs.md"
            )
        return not different
