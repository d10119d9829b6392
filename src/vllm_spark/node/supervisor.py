#!/usr/bin/python3
"""Runs one rank of a pair while the other rank runs, and ends it with the other.

vLLM does not do that: /health stays 200 for minutes after the other node died, and a headless rank outlives its head.
So the two supervisors hold one TCP connection over the fabric, from the worker to the head. While it stands and both
containers run, the pair runs. When it breaks, falls silent, or either container ends, both containers are removed and
both supervisors end; systemd starts them again. After five lives in an hour the head gives up, and tells the worker, so
that both units stay down. A rank without its peer waits here, with no container and no memory taken, for as long as it
takes.

    supervise --name N --rank 0 --launch H --image I --address OWN --peer OTHER … -- docker run …

Both sides first say what they run. A pair whose launches, images or toolkits differ does not start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CONFIG_DIR = Path("/etc/vllm-spark")
RUN_DIR = Path("/run/vllm-spark")

BEAT_S = 2.0
# Longer than a busy box needs for a line, shorter than anyone waits for an answer.
READ_TIMEOUT_S = 10.0
RETRY_S = 2.0
LOG_INTERVAL_S = 60.0
STOP_S = 30

# The unit's own start limit, which a solo server has, counted for two.
MAX_STARTS = 5
WITHIN_S = 3600
# What a unit takes for an orderly end (SuccessExitStatus), and what it does not restart after
# (RestartPreventExitStatus).
STOPPED = 143
GAVE_UP = 78
# A worker that was lost when its head gave up comes back to hear of it.
TELL_S = 120

Message = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Rank:
    """What the launch tells its supervisor. Addresses are the fabric's."""

    name: str
    rank: int
    launch: str
    image: str
    address: str
    peer: str
    peer_host: str
    port: int
    api: str
    first: str
    command: tuple[str, ...]

    @property
    def container(self) -> str:
        return f"vllm-{self.name}"

    @property
    def run_dir(self) -> Path:
        return RUN_DIR / self.name


class LostError(Exception):
    """The other rank is gone. Its text says how that was seen."""


class GaveUpError(LostError):
    """The head has given up."""


class StoppedError(LostError):
    """Somebody has stopped the other rank, which is no failure of this one."""


def start_times(past: Message, restarts: int, now: float) -> Message:
    """lives.json of this start: when the starts of the last hour were. `restarts` is systemd's count of its own
    restarts of the unit; where it did not go up by one, a person or a deploy has begun anew."""
    again = restarts == past.get("restarts", -1) + 1
    times = [at for at in past.get("times", []) if now - at < WITHIN_S] if again else []
    return {"restarts": restarts, "times": [*times, now]}


def differences(mine: Message, theirs: Message) -> list[str]:
    """Why two supervisors that met must not start: one line per thing in which they differ."""
    return [
        f"{name} is {mine.get(name)} here and {theirs.get(name)} there"
        for name in ("launch", "image", "toolkit")
        if mine.get(name) != theirs.get(name)
    ]


def say(text: str) -> None:
    """A line of the journal."""
    print(f"vllm-spark: {text}", flush=True)


def read(path: Path) -> Message:
    """The object in a JSON file; an absent or a broken one is empty, because no rank may stay down for it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class State:
    """state.json of the run folder, which `status` reads: waiting, starting, serving or refused, and why."""

    def __init__(self, rank: Rank) -> None:
        rank.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = rank.run_dir / "state.json"
        self._last_end = read(self._path).get("last_end", "")

    def write(self, state: str, why: str = "") -> None:
        self._put({"state": state, "why": why, "since": time.time(), "last_end": self._last_end})

    def ended(self, reason: str) -> None:
        self._last_end = reason
        self.write("ended", reason)

    def _put(self, document: Message) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(self._path)


class Link:
    """The connection of two supervisors: one JSON object a line, a beat at least every BEAT_S."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def peer(self) -> str:
        return str(self._writer.get_extra_info("peername")[0])

    async def send(self, message: Message) -> None:
        if self._writer.is_closing():
            return  # the peer is gone, and whoever listens hears of it; asyncio would say so for every beat
        self._writer.write(json.dumps(message).encode() + b"\n")
        # A peer that reads nothing is noticed by its silence, not by waiting here.
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), BEAT_S)

    async def receive(self) -> Message:
        """The next message. Raises LostError."""
        try:
            line = await asyncio.wait_for(self._reader.readline(), READ_TIMEOUT_S)
        except TimeoutError:
            raise LostError(f"silent for {READ_TIMEOUT_S:.0f} s") from None
        except (OSError, ValueError) as error:
            raise LostError(f"the connection broke ({error})") from error
        if not line.endswith(b"\n"):
            raise LostError("the connection was closed")
        try:
            message = json.loads(line)
        except ValueError:
            raise LostError(f"it said {line[:80]!r}, which is no message") from None
        return message if isinstance(message, dict) else {}

    async def expect(self, name: str) -> Message:
        """Read until a message has this key; beats pass. Raises LostError."""
        while True:
            message = await self.receive()
            if "bye" in message:
                kinds = {"gave_up": GaveUpError, "stopped": StoppedError}
                raise kinds.get(str(message.get("kind")), LostError)(str(message["bye"]))
            if name in message:
                return message

    async def beat(self) -> None:
        while True:
            await self.send({"beat": 1})
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        self._writer.close()


class Supervisor:
    """One life of a rank: meet the peer, run the container, end with whichever ends first."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._state = State(rank)
        self._met: asyncio.Queue[Link] = asyncio.Queue()
        self._stop = asyncio.Event()
        self._hello: Message = {}
        self._said = ("", 0.0)
        self._last_life = False
        self._told = asyncio.Event()

    async def run(self) -> int:
        """The exit status: 1 for a rank that ended, whoever of the two was the cause; STOPPED, GAVE_UP, or 0."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop.set)
        self._hello = await hello(self._rank)
        self._last_life = self._rank.rank == 0 and await last_life(self._rank)
        if self._rank.rank:
            return await self._live()
        server = await self._or_stop(self._listen())
        if server is None:
            return 0
        try:
            return await self._live()
        finally:
            server.close()

    async def _live(self) -> int:
        while True:
            try:
                link = await self._or_stop(self._meet())
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

    async def _session(self, link: Link) -> int | None:
        """Run the rank as long as the link holds. None: the peer was lost before anything had started here."""
        rank = self._rank
        self._state.write("starting")
        say(f"{rank.peer_host} is here; starting rank {rank.rank}")
        if rank.rank:
            try:
                started = await self._or_stop(link.expect("start"))
            except GaveUpError:
                raise
            except LostError as early:
                say(f"{rank.peer_host} is lost before the start: {early}")
                return None
            if started is None:
                return 0
            token = str(started["start"])
        else:
            token = secrets.token_hex(32)
        session = rank.run_dir / "session.env"
        write_secret(session, f"RAY_AUTH_TOKEN={token}\n")
        child = await asyncio.create_subprocess_exec(*rank.command, start_new_session=True)
        helper = asyncio.ensure_future(self._lead(link, token)) if rank.rank == 0 else None
        reason, status, lost = await self._outlast(link, child)
        if helper:
            helper.cancel()
        stopped = self._stop.is_set()
        gave_up = self._last_life and not stopped
        self._state.ended(reason)
        say(f"ending rank {rank.rank}: {reason}")
        kind = "gave_up" if gave_up else "stopped" if stopped else "ended"
        await link.send({"bye": f"{reason} (rank {rank.rank})", "kind": kind})
        await end(rank.container, child, gently=stopped and rank.rank == 0)
        session.unlink(missing_ok=True)
        if isinstance(lost, GaveUpError):
            raise lost
        if gave_up:
            self._hello["gave_up"] = reason
            if lost:
                with contextlib.suppress(asyncio.TimeoutError):
                    await self._or_stop(asyncio.wait_for(self._told.wait(), TELL_S))
            return self._give_up(reason)
        return status

    def _give_up(self, reason: str) -> int:
        self._state.ended(f"{reason}; gave up after {MAX_STARTS} starts in an hour")
        say(
            f"giving up: {MAX_STARTS} starts within {WITHIN_S // 60} min, the last ended because {reason} — expected: "
            "it to serve. Fix: find the cause in the lines above, on both Sparks, then deploy again. "
            "See docs/runbooks/pair-does-not-start.md"
        )
        return GAVE_UP

    async def _lead(self, link: Link, token: str) -> None:
        """What the head does beside waiting: let the worker start in its turn, and tell when the API answers."""
        if self._rank.first:
            await answers(self._rank.first, None)
        await link.send({"start": token})
        await answers(self._rank.api, "/health")
        say("the API answers")
        self._state.write("serving")
        await link.send({"serving": 1})

    async def _outlast(self, link: Link, child: asyncio.subprocess.Process) -> tuple[str, int, LostError | None]:
        """(why this life of the rank ends, exit status, how the peer was lost if it was)."""
        ending = asyncio.ensure_future(child.wait())
        losing = asyncio.ensure_future(self._watch(link))
        stopping = asyncio.ensure_future(self._stop.wait())
        again = asyncio.ensure_future(self._met.get())
        tasks: list[asyncio.Future[Any]] = [ending, losing, stopping, again]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if stopping.done() and not stopping.cancelled():
            return "it was told to stop", STOPPED, None
        if ending.done() and not ending.cancelled():
            return f"its container ended with status {ending.result()}", 1, None
        if losing.done() and not losing.cancelled():
            lost = losing.result()
            reason = str(lost) if isinstance(lost, GaveUpError) else f"{self._rank.peer_host} is lost: {lost}"
            return reason, STOPPED if isinstance(lost, StoppedError) else 1, lost
        return f"{self._rank.peer_host} started anew", 1, LostError()

    async def _watch(self, link: Link) -> LostError:
        """Listen until the peer is lost; returns how that was seen."""
        try:
            while True:
                await link.expect("serving")
                say(f"{self._rank.peer_host} serves")
                self._state.write("serving")
        except LostError as lost:
            return lost

    async def _meet(self) -> Link:
        self._state.write("waiting", f"for {self._rank.peer_host}")
        if self._rank.rank == 0:
            return await self._await_worker()
        return await self._find_head()

    async def _await_worker(self) -> Link:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(self._met.get(), LOG_INTERVAL_S)
            self._complain(f"waiting for {self._rank.peer_host} to connect to {self._rank.address}:{self._rank.port}")

    async def _listen(self) -> asyncio.AbstractServer:
        """A boot may start this before the fabric has its address."""
        while True:
            try:
                return await asyncio.start_server(self._greet, self._rank.address, self._rank.port)
            except OSError as error:
                self._complain(f"cannot listen on {self._rank.address}:{self._rank.port} yet: {error.strerror}")
                await asyncio.sleep(RETRY_S)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        if link.peer != self._rank.peer:
            self._complain(f"{link.peer} connected, which is not {self._rank.peer_host} ({self._rank.peer})")
            link.close()
            return
        try:
            theirs = await link.receive()
        except LostError:
            link.close()
            return
        await link.send(self._hello)
        if "gave_up" in self._hello:
            self._told.set()
            link.close()
        elif self._agree(theirs):
            self._met.put_nowait(link)
        else:
            link.close()

    async def _find_head(self) -> Link:
        rank = self._rank
        while True:
            try:
                opening = asyncio.open_connection(rank.peer, rank.port, local_addr=(rank.address, 0))
                link = Link(*await asyncio.wait_for(opening, READ_TIMEOUT_S))
                await link.send(self._hello)
                theirs = await link.receive()
                if "gave_up" in theirs:
                    raise GaveUpError(str(theirs["gave_up"]))
                if self._agree(theirs):
                    return link
                link.close()
            except (TimeoutError, OSError) as error:
                why = getattr(error, "strerror", None) or "no answer"
                self._complain(f"waiting for {rank.peer_host} at {rank.peer}:{rank.port}: {why}")
            except GaveUpError:
                raise
            except LostError as lost:
                self._complain(f"waiting for {rank.peer_host}: {lost}")
            await asyncio.sleep(RETRY_S)

    def _agree(self, theirs: Message) -> bool:
        wrong = differences(self._hello, theirs)
        if wrong:
            both = f"{self._rank.peer_host} and this Spark are not one deployment: {'; '.join(wrong)}"
            self._state.write("refused", both)
            self._complain(
                f"{both} — expected: the same on both. Fix: deploy with both hosts in -l. "
                "See docs/runbooks/pair-differs.md"
            )
        return not wrong

    def _complain(self, text: str) -> None:
        """Say a thing once, and again each SAY_EVERY_S while it lasts."""
        said, at = self._said
        if text != said or time.monotonic() - at >= LOG_INTERVAL_S:
            say(text)
            self._said = (text, time.monotonic())

    async def _or_stop(self, what: Any) -> Any:
        """The result of a coroutine, or None where this supervisor is told to stop first."""
        task, stop = asyncio.ensure_future(what), asyncio.ensure_future(self._stop.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            stop.cancel()
            return task.result()
        task.cancel()
        return None


async def last_life(rank: Rank) -> bool:
    """Whether the pair gives up if this life ends too. Writes lives.json."""
    asking = await asyncio.create_subprocess_exec(
        "systemctl", "show", "--property", "NRestarts", "--value", f"vllm@{rank.name}", stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await asking.communicate()
    kept = rank.run_dir / "lives.json"
    found = start_times(read(kept), int(shown.decode().strip() or 0), time.time())
    kept.write_text(json.dumps(found), encoding="utf-8")
    return len(found["times"]) >= MAX_STARTS


async def hello(rank: Rank) -> Message:
    """What a supervisor says first. Nothing in it is secret."""
    record = read(CONFIG_DIR / rank.name / "deployed.json")
    asking = await asyncio.create_subprocess_exec(
        "docker", "image", "inspect", "--format", "{{.Id}}", rank.image, stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await asking.communicate()
    return {"launch": rank.launch, "image": shown.decode().strip(), "toolkit": record.get("toolkit")}


async def answers(address: str, path: str | None) -> None:
    """Return when a port accepts a connection, or, with a path, answers it with 200."""
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            if await asyncio.wait_for(_answered(host, int(port), path), READ_TIMEOUT_S):
                return
        await asyncio.sleep(0.5)


async def _answered(host: str, port: int, path: str | None) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        if path is None:
            return True
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


async def end(container: str, child: asyncio.subprocess.Process, *, gently: bool) -> None:
    """See the container gone. Only a head that is told to stop has requests to finish. A rank whose peer is lost has
    none, nor has a worker: its head ends with it, and Ray on it would wait for that head until it is killed anyway."""
    if gently and child.returncode is None:
        await quiet("docker", "stop", "--time", str(STOP_S), container)
    # Until `docker run` itself has ended: one that was still creating the container would start it afterwards.
    while child.returncode is None:
        await quiet("docker", "rm", "--force", container)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.wait()), 1)
    await quiet("docker", "rm", "--force", container)


async def quiet(*words: str) -> None:
    done = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    await done.wait()


def write_secret(path: Path, content: str) -> None:
    """Mode 0600 from the first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content)


def parse(words: Sequence[str]) -> Rank:
    """The rank that a launch describes."""
    parser = argparse.ArgumentParser(prog="supervise", description=str(__doc__).split("\n", maxsplit=1)[0])
    for name in ("name", "launch", "image", "address", "peer", "peer-host"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rank", type=int, choices=(0, 1), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api", default="", help="host:port that answers /health when the head serves")
    parser.add_argument("--first", default="", help="host:port that must listen before the worker starts")
    parser.add_argument("command", nargs="+")
    asked = vars(parser.parse_args(words))
    return Rank(**{**asked, "command": tuple(asked["command"])})


def main() -> int:
    """Run one life of a rank."""
    return asyncio.run(Supervisor(parse(sys.argv[1:])).run())


if __name__ == "__main__":
    sys.exit(main())
