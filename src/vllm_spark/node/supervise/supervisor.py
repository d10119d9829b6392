"""Runs one rank of a pair while the other rank runs, and ends it with the other.

vLLM does not do that: /health stays 200 for minutes after the other node died, and a headless rank outlives its head.
Therefore the two supervisors keep one TCP connection over the fabric, from the worker to the head. The pair runs while
the connection stands and both containers run. If the connection breaks or falls silent, or if either container ends,
both containers are removed and both supervisors end; systemd starts them again. A peer that is stopped, as by a reboot,
says goodbye; its rank waits for it as before its start, and no start is counted. After five starts in an hour the head
gives up and reports that to the worker, so that both units stay down. A rank without its peer waits without a time
limit. It has no container meanwhile and uses no memory. A start that has served for five minutes resets the count.

    supervise --name N --rank 0 --launch H --image I --address OWN --peer OTHER … -- docker run …

Both sides first prove the key of the deployment, then send what they run. A pair whose launches, images or toolkits
differ does not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from vllm_spark.node import deployment_state, unit_limits
from vllm_spark.node.supervise import identity, server_wait, starts
from vllm_spark.node.supervise.handshake import LostError
from vllm_spark.node.supervise.host import State, log, remove_container, write_secret
from vllm_spark.node.supervise.link import GaveUpError, Link, StoppedError
from vllm_spark.node.supervise.meeting import Meeting
from vllm_spark.node.supervise.rank import Rank, parse

# Exit statuses that the unit knows: an orderly end (SuccessExitStatus), and one after which it does not restart
# (RestartPreventExitStatus).
STOPPED = 143
GAVE_UP = unit_limits.NO_RESTART
# A worker that was lost when its head gave up reconnects within this time and receives the report.
REPORT_TIMEOUT_S = 120

Result = TypeVar("Result")


class Supervisor:
    """One attempt of a rank: connect to the peer, run the container, and end with whichever ends first."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._state = State(rank)
        self._meeting = Meeting(rank, self._state)
        self._stop = asyncio.Event()
        self._last_attempt = False
        self._becoming_good: asyncio.Future[None] | None = None

    async def run(self) -> int:
        """Run until the rank ends. Returns the exit status: 1 for a rank that ended, whichever of the two was the
        cause; STOPPED, GAVE_UP, or 0."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop.set)
        # What this rank runs is read after the wait for the key: the deploy that installs it may change the launch.
        if await self._or_stop(self._await_key()) is None:
            return 0
        self._meeting.hello = await identity.hello(self._rank)
        self._last_attempt = self._rank.rank == 0 and await starts.is_last_attempt(self._rank)
        if self._rank.rank:
            return await self._run_sessions()
        server = await self._or_stop(self._meeting.listen())
        if server is None:
            return 0
        try:
            return await self._run_sessions()
        finally:
            server.close()

    async def _await_key(self) -> bool:
        await self._meeting.wait_for_key()
        return True

    async def _run_sessions(self) -> int:
        while True:
            try:
                link = await self._or_stop(self._meeting.connect())
                if link is None:
                    return 0
                beat = asyncio.ensure_future(link.beat())
                try:
                    status = await self._session(link)
                finally:
                    beat.cancel()
                    link.close()
            except GaveUpError as gave_up:
                return self._give_up(str(gave_up))
            if status is not None:
                return status

    # One session: from a connection to the end of the container

    async def _session(self, link: Link) -> int | None:
        """Run the rank while the link stands. Returns the exit status, or None to wait for the peer again: it was lost
        before the start, or was stopped. Neither is a failed start, and an end of this process would count as one.

        Raises GaveUpError if the head gave up.
        """
        rank = self._rank
        self._state.write(deployment_state.LOADING)
        log(f"{rank.peer_host} is here; starting rank {rank.rank}")
        if rank.rank:
            try:
                start = await self._or_stop(link.expect("start"))
            except GaveUpError:
                raise
            except LostError as early:
                log(f"{rank.peer_host} is lost before the start: {early}")
                return None
            if start is None:
                return 0
        session_env = rank.run_dir / "session.env"
        write_secret(session_env, f"RAY_AUTH_TOKEN={link.token}\n")
        child = await asyncio.create_subprocess_exec(*rank.command, start_new_session=True)
        leading = asyncio.ensure_future(self._lead(link)) if rank.rank == 0 else None
        reason, status, lost = await self._wait_for_end(link, child)
        for task in filter(None, (leading, self._becoming_good)):
            task.cancel()
        stopped = self._stop.is_set()
        goodbye = isinstance(lost, StoppedError)
        gave_up = self._last_attempt and not stopped and not goodbye
        if goodbye:
            self._state.write(deployment_state.WANTED, f"{reason}; it starts again with that Spark")
        elif not stopped:  # the unit knows who stopped it
            reason = self._state.failed(reason)
        log(f"ending rank {rank.rank}: {reason}")
        kind = "gave_up" if gave_up else "stopped" if stopped else "ended"
        await link.send({"bye": f"{reason} (rank {rank.rank})", "kind": kind})
        await remove_container(rank.container, child, gently=stopped and rank.rank == 0)
        session_env.unlink(missing_ok=True)
        if isinstance(lost, GaveUpError):
            raise lost
        if goodbye and not stopped:
            return None
        if gave_up:
            self._meeting.hello["gave_up"] = reason
            if lost:
                with contextlib.suppress(asyncio.TimeoutError):
                    await self._or_stop(asyncio.wait_for(self._meeting.reported.wait(), REPORT_TIMEOUT_S))
            return self._give_up(reason)
        return status

    async def _lead(self, link: Link) -> None:
        """Let the worker of a head start in its turn, and report when the API answers."""
        if self._rank.first:
            await server_wait.wait_for_server(self._rank.first, None)
        await link.send({"start": 1})
        await server_wait.wait_for_server(self._rank.api, "/health")
        log("the API answers")
        self._serve()
        await link.send({"serving": 1})

    async def _wait_for_end(self, link: Link, child: asyncio.subprocess.Process) -> tuple[str, int, LostError | None]:
        """Return why this attempt ends, the exit status, and how the peer was lost (None if it was not)."""
        ending = asyncio.ensure_future(child.wait())
        losing = asyncio.ensure_future(self._watch(link))
        stopping = asyncio.ensure_future(self._stop.wait())
        reconnecting = asyncio.ensure_future(self._meeting.links.get())
        tasks: list[asyncio.Future[Any]] = [ending, losing, stopping, reconnecting]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if stopping.done() and not stopping.cancelled():
            return "it was stopped", STOPPED, None
        lost = losing.result() if losing.done() and not losing.cancelled() else None
        # A container may end because the other one has been stopped.
        if ending.done() and not ending.cancelled() and not isinstance(lost, StoppedError):
            return f"its container ended with status {ending.result()}", 1, None
        if lost:
            reason = str(lost) if isinstance(lost, GaveUpError) else f"{self._rank.peer_host} is lost: {lost}"
            return reason, 1, lost
        return f"{self._rank.peer_host} restarted", 1, LostError()

    async def _watch(self, link: Link) -> LostError:
        """Listen until the peer is lost. Returns how that was detected."""
        try:
            while True:
                await link.expect("serving")
                log(f"{self._rank.peer_host} serves")
                self._serve()
        except LostError as lost:
            return lost

    def _serve(self) -> None:
        """Note that the pair serves, and reset the count of starts when it has served for GOOD_S."""
        self._state.write(deployment_state.SERVING)
        self._becoming_good = asyncio.ensure_future(self._become_good())

    async def _become_good(self) -> None:
        await asyncio.sleep(unit_limits.GOOD_S)
        await starts.reset_starts(self._rank)
        self._last_attempt = False

    def _give_up(self, reason: str) -> int:
        why = f"{unit_limits.LIMIT_REACHED}, the last ended because {reason}"
        self._state.write(deployment_state.GAVE_UP, why)
        log(
            f"giving up: {why} — expected: a pair that serves. Fix: find the cause in the lines above, on both Sparks, "
            "then deploy again. See docs/runbooks/pair-does-not-start.md"
        )
        return GAVE_UP

    # Helpers

    async def _or_stop(self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """Return the result of a coroutine, or None if this supervisor is stopped first."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            stop.cancel()
            return task.result()
        task.cancel()
        return None


def main() -> int:
    """Run one attempt of a rank."""
    return asyncio.run(Supervisor(parse(sys.argv[1:])).run())


if __name__ == "__main__":
    sys.exit(main())
