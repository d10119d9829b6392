#!/usr/bin/python3
"""Runs one rank of a pair while the other rank runs, and ends it with the other.

vLLM does not do that: /health stays 200 for minutes after the other node died, and a headless rank outlives its head.
Therefore the two supervisors keep one TCP connection over the fabric, from the worker to the head. The pair runs while
the connection stands and both containers run. If the connection breaks or falls silent, or if either container ends,
both containers are removed and both supervisors end; systemd starts them again. After five starts in an hour the head
gives up and reports that to the worker, so that both units stay down. A rank without its peer waits without a time
limit. It has no container meanwhile and uses no memory. A start that has served for five minutes resets the count.

    supervise --name N --rank 0 --launch H --image I --address OWN --peer OTHER … -- docker run …

Both sides first send what they run. A pair whose launches, images or toolkits differ does not start.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

CONFIG_DIR = Path("/etc/vllm-spark")
RUN_DIR = Path("/run/vllm-spark")

BEAT_S = 2.0
# Longer than a busy host needs to send a line, shorter than a client waits for a response.
READ_TIMEOUT_S = 10.0
RETRY_S = 2.0
LOG_INTERVAL_S = 60.0
STOP_TIMEOUT_S = 30

# The start limit of the unit, which a solo server has. The head counts it for both ranks.
MAX_STARTS = 5
WITHIN_S = 3600
# A pair that ends within its first requests has a fault, and that counts. A later end does not (liveness.GOOD_S).
GOOD_S = 300.0
# Exit statuses that the unit knows: an orderly end (SuccessExitStatus), and one after which it does not restart
# (RestartPreventExitStatus).
STOPPED = 143
GAVE_UP = 78
# A worker that was lost when its head gave up reconnects within this time and receives the report.
REPORT_TIMEOUT_S = 120

# What a container of an image depends on, for `docker image inspect`. Docker's id of the image is not in it: it depends
# on the image store. An absent and an empty field print the same.
IMAGE_FIELDS = "".join(
    f" {{{{with .{field}}}}}{{{{json .}}}}{{{{end}}}}"
    for field in ("Cmd", "Entrypoint", "Env", "User", "Volumes", "WorkingDir")
)
# An image whose packed layers are not all in the containerd store has no Config.
IMAGE_CONTENT = f"{{{{.Os}}}}/{{{{.Architecture}}}} {{{{json .RootFS}}}}{{{{with .Config}}}}{IMAGE_FIELDS}{{{{end}}}}"

Message = dict[str, Any]
Result = TypeVar("Result")


# --- What a launch passes to its supervisor


@dataclasses.dataclass(frozen=True)
class Rank:
    """The arguments of one rank. Addresses are those of the fabric."""

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


def parse(argv: Sequence[str]) -> Rank:
    """Return the rank that the arguments describe."""
    parser = argparse.ArgumentParser(prog="supervise", description=str(__doc__).split("\n", maxsplit=1)[0])
    for name in ("name", "launch", "image", "address", "peer", "peer-host"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rank", type=int, choices=(0, 1), required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api", default="", help="host:port that answers /health when the head serves")
    parser.add_argument("--first", default="", help="host:port that must listen before the worker starts")
    parser.add_argument("command", nargs="+")
    args = vars(parser.parse_args(argv))
    return Rank(**{**args, "command": tuple(args["command"])})


# --- Files, log lines and commands


def log(text: str) -> None:
    """Print a line for the journal."""
    print(f"vllm-spark: {text}", flush=True)


def read(path: Path) -> Message:
    """Return the object in a JSON file. An absent or broken file is empty, because it must not keep a rank down."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def write_secret(path: Path, content: str) -> None:
    """Write a file that has mode 0600 from its first byte on."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content)


class State:
    """state.json in the run folder, which `status` reads: waiting, starting, serving, refused or ended, and why."""

    def __init__(self, rank: Rank) -> None:
        rank.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = rank.run_dir / "state.json"
        self._last_end = read(self._path).get("last_end", "")

    def write(self, state: str, why: str = "") -> None:
        """Write a state. `why` explains a state in which the rank does not serve."""
        self._replace({"state": state, "why": why, "since": time.time(), "last_end": self._last_end})

    def ended(self, reason: str) -> None:
        """Write the end of an attempt. Later states keep its reason."""
        self._last_end = reason
        self.write("ended", reason)

    def _replace(self, document: Message) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(document), encoding="utf-8")
        new.replace(self._path)


async def output_of(*argv: str) -> str:
    """Run a command and return its stdout without surrounding white space."""
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    return stdout.decode().strip()


async def run_quietly(*argv: str) -> None:
    """Run a command without its output, whatever its exit status."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    await process.wait()


async def remove_container(container: str, child: asyncio.subprocess.Process, *, gently: bool) -> None:
    """Remove the container and wait until `docker run` ended.

    `gently` is for a head that is stopped: it has requests to finish. A rank whose peer is lost has none. Nor has a
    worker: its head ends with it, and Ray on the worker would wait for that head until it is killed anyway.
    """
    if gently and child.returncode is None:
        await run_quietly("docker", "stop", "--time", str(STOP_TIMEOUT_S), container)
    # A `docker run` that is still creating the container would start it after a single removal.
    while child.returncode is None:
        await run_quietly("docker", "rm", "--force", container)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(child.wait()), 1)
    await run_quietly("docker", "rm", "--force", container)


# --- The start limit of the pair


def start_times(past: Message, restarts: int, now: float) -> Message:
    """Return lives.json for this start: the times of the starts within the last hour.

    `restarts` is systemd's count of its own restarts of the unit. If it did not increase by one, a person or a deploy
    started the unit, and the count begins at one.
    """
    restarted = restarts == past.get("restarts", -1) + 1
    times = [at for at in past.get("times", []) if now - at < WITHIN_S] if restarted else []
    return {"restarts": restarts, "times": [*times, now]}


async def is_last_attempt(rank: Rank) -> bool:
    """Record this start in lives.json. Returns True if the pair gives up when this attempt ends."""
    restarts = await output_of("systemctl", "show", "--property", "NRestarts", "--value", f"vllm@{rank.name}")
    file = rank.run_dir / "lives.json"
    starts = start_times(read(file), int(restarts or 0), time.time())
    file.write_text(json.dumps(starts), encoding="utf-8")
    return len(starts["times"]) >= MAX_STARTS


async def reset_starts(rank: Rank) -> None:
    """Forget the starts so far: in lives.json, and in systemd, which has the same limit."""
    (rank.run_dir / "lives.json").write_text(json.dumps({"restarts": 0, "times": []}), encoding="utf-8")
    await run_quietly("systemctl", "reset-failed", f"vllm@{rank.name}")


# --- The connection of two supervisors


class LostError(Exception):
    """Raised if the other rank is gone. Its text says how that was detected."""


class GaveUpError(LostError):
    """Raised if the head has given up."""


class StoppedError(LostError):
    """Raised if the other rank was stopped, which is not a failure of this one."""


async def hello(rank: Rank) -> Message:
    """Return the first message of a supervisor. It contains no secret."""
    record = read(CONFIG_DIR / rank.name / "deployed.json")
    content = await output_of("docker", "image", "inspect", "--format", IMAGE_CONTENT, rank.image)
    return {"launch": rank.launch, "image": image_identity(rank.image, content), "toolkit": record.get("toolkit")}


def image_identity(name: str, content: str) -> str:
    """Return a text that is equal on both hosts if they have the same image, in whichever store Docker keeps it.
    `content` is the output of IMAGE_CONTENT, empty for an absent image. A name with a digest identifies its image."""
    digest = name.partition("@")[2]
    if content and digest:
        return digest
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}" if content else ""


def differences(own: Message, peer: Message) -> list[str]:
    """Return why two supervisors must not start: one line per property in which they differ."""
    return [
        f"{name} is {own.get(name)} here and {peer.get(name)} there"
        for name in ("launch", "image", "toolkit")
        if own.get(name) != peer.get(name)
    ]


class Link:
    """The connection of two supervisors: one JSON object per line, and a beat at least every BEAT_S."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def peer(self) -> str:
        return str(self._writer.get_extra_info("peername")[0])

    async def send(self, message: Message) -> None:
        """Send a message. A lost peer is not an error here: `receive` detects it."""
        if self._writer.is_closing():
            return  # otherwise asyncio would log a warning for every beat
        self._writer.write(json.dumps(message).encode() + b"\n")
        # A peer that does not read is detected by its silence, not by a wait here.
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), BEAT_S)

    async def receive(self) -> Message:
        """Return the next message. Raises LostError."""
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
            raise LostError(f"it sent {line[:80]!r}, which is not a message") from None
        return message if isinstance(message, dict) else {}

    async def expect(self, key: str) -> Message:
        """Return the next message that has this key; beats are skipped. Raises LostError, also for a goodbye."""
        while True:
            message = await self.receive()
            if "bye" in message:
                kinds = {"gave_up": GaveUpError, "stopped": StoppedError}
                raise kinds.get(str(message.get("kind")), LostError)(str(message["bye"]))
            if key in message:
                return message

    async def beat(self) -> None:
        """Send a beat every BEAT_S until cancelled."""
        while True:
            await self.send({"beat": 1})
            await asyncio.sleep(BEAT_S)

    def close(self) -> None:
        self._writer.close()


# --- Waiting for the server of this rank


async def wait_for_port(address: str, path: str | None) -> None:
    """Return when host:port accepts a connection or, with a path, answers it with 200."""
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            if await asyncio.wait_for(_port_answers(host, int(port), path), READ_TIMEOUT_S):
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


# --- The supervisor


class Supervisor:
    """One attempt of a rank: connect to the peer, run the container, and end with whichever ends first."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._state = State(rank)
        self._links: asyncio.Queue[Link] = asyncio.Queue()
        self._stop = asyncio.Event()
        self._hello: Message = {}
        self._last_log = ("", 0.0)
        self._last_attempt = False
        self._becoming_good: asyncio.Future[None] | None = None
        self._reported = asyncio.Event()

    async def run(self) -> int:
        """Run until the rank ends. Returns the exit status: 1 for a rank that ended, whichever of the two was the
        cause; STOPPED, GAVE_UP, or 0."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._stop.set)
        self._hello = await hello(self._rank)
        self._last_attempt = self._rank.rank == 0 and await is_last_attempt(self._rank)
        if self._rank.rank:
            return await self._run_sessions()
        server = await self._or_stop(self._listen())
        if server is None:
            return 0
        try:
            return await self._run_sessions()
        finally:
            server.close()

    async def _run_sessions(self) -> int:
        while True:
            try:
                link = await self._or_stop(self._connect())
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

    # Connecting

    async def _connect(self) -> Link:
        self._state.write("waiting", f"for {self._rank.peer_host}")
        if self._rank.rank == 0:
            return await self._await_worker()
        return await self._find_head()

    async def _await_worker(self) -> Link:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(self._links.get(), LOG_INTERVAL_S)
            self._log_once(f"waiting for {self._rank.peer_host} to connect to {self._rank.address}:{self._rank.port}")

    async def _listen(self) -> asyncio.AbstractServer:
        """Return the server of the head. After a boot the fabric may not have its address yet."""
        while True:
            try:
                return await asyncio.start_server(self._accept, self._rank.address, self._rank.port)
            except OSError as error:
                self._log_once(f"cannot listen on {self._rank.address}:{self._rank.port} yet: {error.strerror}")
                await asyncio.sleep(RETRY_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        if link.peer != self._rank.peer:
            self._log_once(f"{link.peer} connected, which is not {self._rank.peer_host} ({self._rank.peer})")
            link.close()
            return
        try:
            peer_message = await link.receive()
        except LostError:
            link.close()
            return
        await link.send(self._hello)
        if "gave_up" in self._hello:
            self._reported.set()
            link.close()
        elif self._matches(peer_message):
            self._links.put_nowait(link)
        else:
            link.close()

    async def _find_head(self) -> Link:
        rank = self._rank
        while True:
            try:
                opening = asyncio.open_connection(rank.peer, rank.port, local_addr=(rank.address, 0))
                link = Link(*await asyncio.wait_for(opening, READ_TIMEOUT_S))
                await link.send(self._hello)
                peer_message = await link.receive()
                if "gave_up" in peer_message:
                    raise GaveUpError(str(peer_message["gave_up"]))
                if self._matches(peer_message):
                    return link
                link.close()
            except (TimeoutError, OSError) as error:
                why = getattr(error, "strerror", None) or "no answer"
                self._log_once(f"waiting for {rank.peer_host} at {rank.peer}:{rank.port}: {why}")
            except GaveUpError:
                raise
            except LostError as lost:
                self._log_once(f"waiting for {rank.peer_host}: {lost}")
            await asyncio.sleep(RETRY_S)

    def _matches(self, peer_message: Message) -> bool:
        """Return True if both ranks run the same. A difference is logged and becomes the state."""
        different = differences(self._hello, peer_message)
        if different:
            why = f"{self._rank.peer_host} and this Spark are not one deployment: {'; '.join(different)}"
            self._state.write("refused", why)
            self._log_once(
                f"{why} — expected: the same on both. Fix: deploy with both hosts in -l. "
                "See docs/runbooks/pair-differs.md"
            )
        return not different

    # One session: from a connection to the end of the container

    async def _session(self, link: Link) -> int | None:
        """Run the rank while the link stands. Returns the exit status, or None if the peer was lost before the start.

        Raises GaveUpError if the head gave up.
        """
        rank = self._rank
        self._state.write("starting")
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
            token = str(start["start"])
        else:
            token = secrets.token_hex(32)
        session_env = rank.run_dir / "session.env"
        write_secret(session_env, f"RAY_AUTH_TOKEN={token}\n")
        child = await asyncio.create_subprocess_exec(*rank.command, start_new_session=True)
        leading = asyncio.ensure_future(self._lead(link, token)) if rank.rank == 0 else None
        reason, status, lost = await self._wait_for_end(link, child)
        for task in filter(None, (leading, self._becoming_good)):
            task.cancel()
        stopped = self._stop.is_set()
        gave_up = self._last_attempt and not stopped
        self._state.ended(reason)
        log(f"ending rank {rank.rank}: {reason}")
        kind = "gave_up" if gave_up else "stopped" if stopped else "ended"
        await link.send({"bye": f"{reason} (rank {rank.rank})", "kind": kind})
        await remove_container(rank.container, child, gently=stopped and rank.rank == 0)
        session_env.unlink(missing_ok=True)
        if isinstance(lost, GaveUpError):
            raise lost
        if gave_up:
            self._hello["gave_up"] = reason
            if lost:
                with contextlib.suppress(asyncio.TimeoutError):
                    await self._or_stop(asyncio.wait_for(self._reported.wait(), REPORT_TIMEOUT_S))
            return self._give_up(reason)
        return status

    async def _lead(self, link: Link, token: str) -> None:
        """Let the worker of a head start in its turn, and report when the API answers."""
        if self._rank.first:
            await wait_for_port(self._rank.first, None)
        await link.send({"start": token})
        await wait_for_port(self._rank.api, "/health")
        log("the API answers")
        self._serve()
        await link.send({"serving": 1})

    async def _wait_for_end(self, link: Link, child: asyncio.subprocess.Process) -> tuple[str, int, LostError | None]:
        """Return why this attempt ends, the exit status, and how the peer was lost (None if it was not)."""
        ending = asyncio.ensure_future(child.wait())
        losing = asyncio.ensure_future(self._watch(link))
        stopping = asyncio.ensure_future(self._stop.wait())
        reconnecting = asyncio.ensure_future(self._links.get())
        tasks: list[asyncio.Future[Any]] = [ending, losing, stopping, reconnecting]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        if stopping.done() and not stopping.cancelled():
            return "it was stopped", STOPPED, None
        if ending.done() and not ending.cancelled():
            return f"its container ended with status {ending.result()}", 1, None
        if losing.done() and not losing.cancelled():
            lost = losing.result()
            reason = str(lost) if isinstance(lost, GaveUpError) else f"{self._rank.peer_host} is lost: {lost}"
            return reason, STOPPED if isinstance(lost, StoppedError) else 1, lost
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
        self._state.write("serving")
        self._becoming_good = asyncio.ensure_future(self._become_good())

    async def _become_good(self) -> None:
        await asyncio.sleep(GOOD_S)
        await reset_starts(self._rank)
        self._last_attempt = False

    def _give_up(self, reason: str) -> int:
        self._state.ended(f"{reason}; gave up after {MAX_STARTS} starts in an hour")
        log(
            f"giving up: {MAX_STARTS} starts within {WITHIN_S // 60} min, the last ended because {reason} — expected: "
            "a pair that serves. Fix: find the cause in the lines above, on both Sparks, then deploy again. "
            "See docs/runbooks/pair-does-not-start.md"
        )
        return GAVE_UP

    # Helpers

    def _log_once(self, text: str) -> None:
        """Log a text once, and again every LOG_INTERVAL_S while it is repeated."""
        last, at = self._last_log
        if text != last or time.monotonic() - at >= LOG_INTERVAL_S:
            log(text)
            self._last_log = (text, time.monotonic())

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
