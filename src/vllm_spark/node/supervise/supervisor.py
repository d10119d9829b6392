"""Runs one rank of a deployment while the other ranks run, and ends it with them.

vLLM does not do that: /health stays 200 for minutes after another node died, and a headless rank outlives its head.
Therefore the supervisors keep TCP connections over the fabric, from each worker to the head. A start runs while they
stand and all containers run. If one breaks or falls silent, or if a container ends, all containers are removed and all
supervisors end; systemd starts them again. What counts as a failed start is in starts.py: the ranks exchange it, so
that they give up together. A rank without its peers waits without a time limit. It has no container meanwhile and uses
no memory.

    supervise --name N --rank 0 --launch H --image I --address OWN --peer OTHER … -- docker run …

All first prove the key of the deployment, then send what they run. Ranks whose launches, images or toolkits differ do
not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from vllm_spark.node import endings, starts
from vllm_spark.node import turn as turns
from vllm_spark.node.deployment_state import FAILED
from vllm_spark.node.starts import Count, Moment, Record
from vllm_spark.node.supervise import host, identity, server_wait
from vllm_spark.node.supervise import rank as rank_module
from vllm_spark.node.supervise.attempt import Attempt
from vllm_spark.node.supervise.handshake import LostError
from vllm_spark.node.supervise.host import Message, RankState, log
from vllm_spark.node.supervise.link import Link
from vllm_spark.node.supervise.meeting import RETRY_S, HeadGaveUpError, Meeting
from vllm_spark.node.supervise.rank import Rank, parse
from vllm_spark.node.turn import Turn

# The lines of a `ray start` that has reached a time limit of Ray's own: 30 s for its raylet, 60 s for the head's GCS,
# both without an option (Ray 2.55, _private/node.py and the GCS client).
RAY_SLOW = re.compile(
    r"[^\n]*(?:The current node timed out during startup|Timed out while waiting for \S+ to become available"
    r"|raylet may not have started successfully)[^\n]*"
)


class Supervisor:
    """The hands of an attempt, on the host of its rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank, self._state = rank, RankState(rank)
        deadline_s = host.read(rank.record.with_name("gates.json")).get("deadline_s") or 0
        self.attempt = Attempt(self, rank.name, rank.rank, rank.partners, deadline_s)
        self.attempt.in_turn = rank.in_turn
        self._turn, self._queueing = Turn(rank.name, rank_module.PLACES), 0
        self._meeting = Meeting(rank, self._state, self._count, self._met, self.attempt.wait)
        self._links: dict[str, Link] = {}
        self._child: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Future[None] | None = None
        self._runs, self._stopped = 0, False
        self._tasks: set[asyncio.Future[None]] = set()
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def supervise(self) -> int:
        """Run until the attempt ends. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop)
        self._spawn(self._meet())
        status = await self._exit
        for link in self._links.values():
            await link.flush()
        for task in self._tasks:
            task.cancel()
        return status

    async def _meet(self) -> None:
        # What this rank runs is read after the wait for the key: the deploy that installs it may change the launch.
        await self._meeting.wait_for_key()
        self._meeting.hello = await identity.hello(self._rank)
        if not self._rank.rank:
            server = await self._meeting.listen()
            self.attempt.begin()
            await self._meeting.wait(server)
        self.attempt.begin()
        while True:
            try:
                await self._meeting.find_head()
            except HeadGaveUpError as gave_up:
                self.attempt.gave_up(str(gave_up))
                await asyncio.sleep(RETRY_S)

    def _count(self) -> Message:
        return dataclasses.asdict(starts.read(self._rank.name, rank_module.PLACES).count)

    async def _met(self, peer: str, link: Link, count: Count | None) -> None:
        """Let the attempt talk with a peer until it is lost."""
        await asyncio.wait([self._spawn(self._talk(peer, link, count))])

    async def _talk(self, peer: str, link: Link, count: Count | None) -> None:
        beat = asyncio.ensure_future(link.beat())
        self._links[peer] = link
        self.attempt.met(peer, count)
        if self._rank.rank and count and not self._exit.done():
            link.send({"count": self._count()})
        try:
            while True:
                self.attempt.received(peer, await link.receive())
        except LostError as lost:
            if self._links.get(peer) is link:
                del self._links[peer]
                self.attempt.lost(peer, str(lost))
        finally:
            beat.cancel()

    def _stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.attempt.stopping()
            self._spawn(self._say_stop())

    async def _say_stop(self) -> None:
        asked = await asyncio.to_thread(endings.asked, self._rank.name, rank_module.PLACES)
        self.attempt.stop(asked.why if asked else "by a signal")

    # What an attempt can do

    def now(self) -> Moment:
        return starts.moment(rank_module.PLACES)

    def keep(self, step: Callable[[Record], Record]) -> Record:
        return starts.change(self._rank.name, rank_module.PLACES, step)

    def state(self, state: str, why: str = "") -> None:
        self._state.write(state, why)

    def say(self, text: str) -> None:
        log(text)

    def send(self, peer: str, message: Message) -> None:
        if peer in self._links:
            self._links[peer].send(message)

    def part(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def run(self) -> None:
        self._runs += 1
        self._spawn(self._run(self._runs))

    def watch(self) -> None:
        if self._watching:
            self._watching.cancel()
        self._watching = self._spawn(self._watch())

    def remove(self, *, gently: bool) -> None:
        self._runs += 1
        self._spawn(self._remove(gently))

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            event()

        self._spawn(later())

    def take_turn(self) -> None:
        self._queueing += 1
        self._spawn(self._take_turn(self._queueing))

    def give_turn(self) -> None:
        self._queueing += 1
        self._turn.give()

    def exit(self, status: int) -> None:
        if not self._exit.done():
            self._exit.set_result(status)

    # How

    async def _run(self, run: int) -> None:
        """Run the container, in place of one that runs."""
        rank, link = self._rank, self._links.get(self._rank.partners[0])
        if self._child:
            await host.remove_container(rank.container, self._child, gently=False)
        if run != self._runs or not link:
            return
        host.write_secret(rank.session_env, f"RAY_AUTH_TOKEN={link.token}\n")
        began = time.time()
        self._child = await asyncio.create_subprocess_exec(*rank.command, start_new_session=True)
        status, was = await self._child.wait(), self._state.now
        down = await asyncio.to_thread(endings.docker_is_down)
        slow = await self._slow_ray(began) if rank.over_ray and not self.attempt.serving else ""
        if run != self._runs:
            return
        if down:
            self.attempt.docker_ended(endings.DOCKER_ENDED)
            return
        record = starts.read(rank.name, rank_module.PLACES)
        hung = was["state"] == FAILED and was["start"] == record.id
        running_s = self.now().up - record.start.up if record.start else 0.0
        self.attempt.container_ended(was["why"] if hung else endings.of_container(status), slow, running_s)

    async def _take_turn(self, asked: int) -> None:
        """Wait for the turn of this Spark, then for the memory of the budget, unless the turn is given back before."""
        written, deadline = "", 0.0
        while asked == self._queueing:
            if holder := self._turn.take():
                why = f"it waits for its turn to load: {holder} loads on this Spark"
            elif why := self._turn.lacks():
                deadline = deadline or time.monotonic() + turns.ROOM_S
                if time.monotonic() >= deadline:
                    self.attempt.turn_overdue(turns.overdue(why))
                    return
                why = f"it waits for memory: {why}"
            else:
                self.attempt.turn_taken()
                return
            if why != written:
                written = why
                log(why)
                self.attempt.turn_waits(why)
            await asyncio.sleep(turns.POLL_S)

    async def _slow_ray(self, began: float) -> str:
        """Return the last line of the container by which Ray says that it has not started within its own limit."""
        unit = f"SYSLOG_IDENTIFIER=vllm-{self._rank.name}"
        await host.run_quietly("journalctl", "--sync")
        journal = await host.output_of("journalctl", "--quiet", "--output=cat", f"--since=@{began:.0f}", "-n200", unit)
        found = RAY_SLOW.findall(journal)
        return found[-1].strip() if found else ""

    async def _watch(self) -> None:
        if self._rank.first:
            await server_wait.wait_for_server(self._rank.first, None)
        self.attempt.listens()
        await server_wait.wait_for_server(self._rank.api, "/health")
        self.attempt.serves()

    async def _remove(self, gently: bool) -> None:
        if self._watching:
            self._watching.cancel()
        await host.remove_container(self._rank.container, self._child, gently=gently)
        with contextlib.suppress(OSError):
            self._rank.session_env.unlink()
        self.attempt.removed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Run a coroutine. Its error ends the supervisor."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._exit.done():
            self._exit.set_exception(error)


async def _supervise(rank: Rank) -> int:
    return await Supervisor(rank).supervise()


def main() -> int:
    """Run one attempt of a rank."""
    return asyncio.run(_supervise(parse(sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
