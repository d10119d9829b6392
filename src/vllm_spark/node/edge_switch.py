#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Starts an inactive model of this Spark when the edge passes a request for it on: `vllm_edge.switch_by_request`.

Only the edge reaches the socket of this program. The edge has checked the key and the person's right, and sends three
headers: person, deployment and model. A deployment must be in the list that the plan has written. The program lets root
start vllm-switch, one at a time, and answers at once: what happens, and when to ask again. It does not read the body.

With --as-root it is root's side: systemd starts it for each connection to a second socket. It runs vllm-switch for one
deployment of the list, and can do nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any, cast

CONFIG_DIR = Path("/etc/vllm-spark")
LIST = CONFIG_DIR / "edge" / "switch.json"
SOCKET = Path("/run/vllm-edge-switch/switch.sock")
# Root's side. A line `DEPLOYMENT PERSON` goes there. The words of vllm-switch come back, then a line with its status.
ROOT_SOCKET = Path("/run/vllm-switch-root.sock")
LOCK = Path("/run/vllm-spark/operator.lock")
# deployment -> state, as the edge reads it (node/state_writer.py).
STATES = Path("/run/vllm-spark/states.map")
# How the state of a deployment begins whose memory is lent; the end of the lease in epoch seconds follows.
LENT = "lent_"
SWITCH = Path("/usr/local/bin/vllm-switch")
WHO, DEPLOYMENT, MODEL = "x-vllm-edge-who", "x-vllm-edge-switch", "x-vllm-edge-model"
# What a client calls an error with status 503.
TYPE = "x-vllm-edge-type"
# A person as the edge's log has it (vllm_spark.edge.persons).
PERSON = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Every step of vllm-switch has a deadline of its own; together they are shorter than this.
SWITCH_TIMEOUT_S = 7200.0
# A target that has failed is not tried again for this long. Each further failure doubles the time.
BACKOFF_S, MAX_BACKOFF_S = 60.0, 3600.0
# The edge finds a started engine with its next check.
SETTLE_S = 5.0
RETRY_S, HELD_RETRY_S = 10, 60
LOCK_POLL_S = 5.0
# Longer than a deployment and a person.
MAX_LINE = 300
# The part of an error that a client sees, in characters.
SHOWN = 300
CLIENT_TIMEOUT_S = 10.0
CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a request. `retry_s` is its header Retry-After."""

    status: int
    code: str
    message: str
    retry_s: int

    def body(self, unavailable: str) -> bytes:
        """Return the error in the shape of the edge's own. `unavailable`: the type of a 503 for this client."""
        kind = {404: "invalid_request_error", 429: "rate_limit_error"}.get(self.status, unavailable)
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return json.dumps({"type": "error", "error": error}).encode()


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure of a target. `until` is the time of the next attempt, `count` the failures without a success."""

    error: str
    until: float
    count: int


@dataclass(slots=True)
class StartQueue:
    """What is being started, what waits, and what has failed. Times are those of one monotonic clock, in seconds.

    - `places`: how many targets may wait; `stay_s`: how long a started target stays before the next one is started
    - `current`: the target that was started last, at `started_at`
    - `took_s`: the duration of the last good start, by target

    Targets come from the list of the plan, so each collection is as long as that list at most.
    """

    places: int
    stay_s: float
    running: str = ""
    since: float = 0.0
    current: str = ""
    started_at: float = -1e9
    waiting: list[str] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def ask(self, target: str, model: str, now: float) -> Answer:
        """Return the answer to a request for a target, which may then wait or be started by `begin`."""
        if target == self.running:
            return self._starting(target, model, now)
        failure = self.failures.get(target)
        if failure and now < failure.until:
            left = _seconds(failure.until - now)
            return Answer(503, "switch_failed", f"{model} could not be started: {failure.error} "
                          f"The next attempt is possible in {left} s.", left)  # fmt: skip
        if target == self.current and now < self.started_at + SETTLE_S:
            return Answer(503, "model_starting", f"{model} has just been started: ask again.", 1)
        if target not in self.waiting:
            # A target that can start at once needs no place.
            if len(self.waiting) >= self.places + (self._pause(now) == 0):
                names = ", ".join(filter(None, [self.running, *self.waiting])) or self.current
                return Answer(429, "switch_queue_full", f"{model} cannot wait: {names} came first, and "
                              f"{self.places} may wait.", self._retry(now))  # fmt: skip
            self.waiting.append(target)
        if self.waiting[0] == target and self._pause(now) == 0:
            return self._starting(target, model, now)
        return Answer(503, "model_waiting", f"{model} waits: {self._before(target, now)}", self._retry(now))

    def _before(self, target: str, now: float) -> str:
        """Return what a waiting target waits for."""
        if self.running:
            return f"{self.running} is being started."
        if self.waiting[0] != target:
            return f"{self.waiting[0]} was asked for first."
        stayed, stays = _seconds(now - self.started_at), _seconds(self.stay_s)
        return f"{self.current} was started {stayed} s ago, and stays for {stays} s (vllm_edge.limits.switch_stay_s)."

    def begin(self, now: float) -> str:
        """Return the target that is to be started now, empty for none. It is `running` until `end`."""
        if not self.waiting or self._pause(now) > 0:
            return ""
        self.running, self.since = self.waiting.pop(0), now
        return self.running

    def end(self, error: str, now: float) -> None:
        """Note how the start of the running target has ended."""
        target, self.running = self.running, ""
        if error:
            count = self.failures[target].count + 1 if target in self.failures else 1
            pause = min(BACKOFF_S * 2 ** (count - 1), MAX_BACKOFF_S)
            self.failures[target] = Failure(error, now + pause, count)
            return
        self.failures.pop(target, None)
        self.took_s[target] = now - self.since
        self.current, self.started_at = target, now

    def pause(self, now: float) -> float | None:
        """Return after how many seconds `begin` has something to do; None while nothing waits."""
        return self._pause(now) if self.waiting and not self.running else None

    def _pause(self, now: float) -> float:
        """Return how long nothing else may be started: without end during a start."""
        return float("inf") if self.running else max(0.0, self.started_at + self.stay_s - now)

    def _retry(self, now: float) -> int:
        pause = self._pause(now)
        return RETRY_S if pause == float("inf") else max(RETRY_S, _seconds(pause))

    def _starting(self, target: str, model: str, now: float) -> Answer:
        took, text = self.took_s.get(target), f"{model} is being started"
        if took is None:
            return Answer(503, "model_starting", f"{text}: ask again.", RETRY_S)
        left = _seconds(took - (now - self.since if self.running else 0))
        return Answer(503, "model_starting", f"{text}; it serves in about {left} s.", left)


def _seconds(time_s: float) -> int:
    return max(1, round(time_s))


@dataclass(slots=True)
class Worker:
    """The worker of the queue, and what it reads: the plan's list, the operator lock, the states, root's socket.

    - `models`: deployment -> names that clients use; `pairs`: the pairs of which this Spark is a part
    - `active_states`: those of a deployment that serves, or will serve without a person
    - `config_dir`: has a folder for each deployment that was placed
    - `asked`: who asked for a target first
    """

    queue: StartQueue
    models: Mapping[str, Sequence[str]]
    pairs: Sequence[str] = ()
    active_states: Sequence[str] = ()
    root_socket: Path = ROOT_SOCKET
    lock: Path = LOCK
    config_dir: Path = CONFIG_DIR
    states: Path = STATES
    asked: dict[str, str] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def state(self, deployment: str) -> str:
        """Return the state of a deployment; empty for one that has not run since the boot."""
        with contextlib.suppress(OSError):
            lines = self.states.read_text(encoding="utf-8").splitlines()
            return dict(line.split(" ", 1) for line in lines if " " in line).get(deployment, "")
        return ""

    def active(self, deployment: str) -> bool:
        """Return True for a deployment that serves, or will serve without a person."""
        return self.state(deployment) in self.active_states

    def beside(self, deployment: str) -> Sequence[str]:
        """Return what the plan lets run beside a deployment; nothing for one that has its Spark alone."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.config_dir / deployment / "deployed.json").read_text()).get("beside", ())  # type: ignore[no-any-return]
        return ()

    def ask(self, who: str, target: str, model: str) -> Answer:
        """Answer one request, and write who asked for what. A name that is not in the list is not repeated."""
        if model not in self.models.get(target, ()):
            return Answer(404, "model_not_found", "This Spark has no such model.", RETRY_S)
        if self.lock.exists():
            answer = Answer(
                503, "spark_held", f"{model} is not started: its owner is changing this Spark.", HELD_RETRY_S
            )
        elif self.state(target).startswith(LENT):
            left = max(HELD_RETRY_S, int(self.state(target).removeprefix(LENT) or 0) - round(time.time()))
            answer = Answer(503, "lent", f"{model} is not started: its memory is lent for {left} s.", left)
        elif pair := next(filter(self.active, [pair for pair in self.pairs if pair not in self.beside(target)]), ""):
            text = f"{model} is not started: this Spark is a part of the pair {pair}, which no request stops."
            answer = Answer(503, "pair_active", text, HELD_RETRY_S)
        elif not (self.config_dir / target / "launch").exists():
            text = f"{model} has never been deployed on this Spark. Its owner does that with: "
            text += f"vllm-spark switch -e to={target}"
            answer = Answer(503, "model_not_placed", text, HELD_RETRY_S)
        elif target != self.queue.running and self.active(target):
            answer = Answer(503, "model_loading", f"{model} is loading: ask again.", RETRY_S)
        else:
            with self.changed:
                answer = self.queue.ask(target, model, time.monotonic())
                if target in self.queue.waiting:
                    self.asked.setdefault(target, who if PERSON.fullmatch(who) else "-")
                self.changed.notify_all()
        say(f"{who if PERSON.fullmatch(who) else '-'} asked for {model} of {target}: {answer.status} {answer.code}")
        return answer

    def work(self) -> None:
        """Start one target after the other, without end."""
        while True:
            self.step()

    def step(self) -> None:
        """Wait for a target that is due, and start it. An operator who holds the Spark ends the queue."""
        with self.changed:
            if self.lock.exists() and self.queue.waiting:
                say(f"an operator holds this Spark: {', '.join(self.queue.waiting)} will not be started")
                self.queue.waiting.clear()
            now = time.monotonic()
            if not (target := self.queue.begin(now)):
                pause = self.queue.pause(now)
                self.changed.wait(None if pause is None else min(pause, LOCK_POLL_S))
                return
        say(f"starting {target}")
        error = self.run(target, self.asked.pop(target, "-"))
        with self.changed:
            self.queue.end(error, time.monotonic())
        say(f"{target} was not started: {error}" if error else f"{target} was started")

    def run(self, target: str, who: str) -> str:
        """Let root run vllm-switch. Returns its error, empty if the target serves."""
        try:
            with socket.socket(socket.AF_UNIX) as root:
                root.settimeout(SWITCH_TIMEOUT_S)
                root.connect(str(self.root_socket))
                root.sendall(f"{target} {who}\n".encode())
                output = b"".join(iter(lambda: root.recv(CHUNK), b"")).decode(errors="replace")
        except OSError as error:
            return plain(f"root does not start it: {error}")
        words, _, status = output.rstrip("\n").rpartition("\n")
        return "" if status == "0" else plain(words) or f"vllm-switch ended with {status or 'no status'}."


def as_root(line: str, models: Mapping[str, Sequence[str]], switch: Path) -> str:
    """Run vllm-switch for a deployment of the plan's list. Returns what it says, and its status as the last line."""
    target, _, who = line.rstrip("\n").partition(" ")
    if target not in models or not PERSON.fullmatch(who):
        return "This is no deployment of the list, or no person.\n2\n"
    try:
        done = subprocess.run(
            [str(switch), target, f"--by=a request of {who}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SWITCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{error}\n1\n"
    return f"{done.stdout.decode(errors='replace')}\n{done.returncode}\n"


def plain(text: str) -> str:
    """Return a text as one line of printable characters, shortened from the front: the reason is at its end."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= SHOWN else f"…{line[-SHOWN:]}"


def say(text: str) -> None:
    """Write a line to the journal."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


class RequestServer(ThreadingUnixStreamServer):
    """The server on the socket. The edge bounds the number of its connections."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, worker: Worker) -> None:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
        super().__init__(str(path), Handler)
        self.worker = worker


class Handler(BaseHTTPRequestHandler):
    """One request of the edge."""

    timeout = CLIENT_TIMEOUT_S

    def do_POST(self) -> None:
        headers = [self.headers.get(name, "") for name in (WHO, DEPLOYMENT, MODEL)]
        answer = cast("RequestServer", self.server).worker.ask(*headers)
        body = answer.body(self.headers.get(TYPE, "service_unavailable_error"))
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Retry-After", str(answer.retry_s))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.drop_body()

    def drop_body(self) -> None:
        """Receive what the edge still sends, and keep none of it: a connection that is closed before is reset, and the
        answer is lost."""
        self.wfile.flush()
        deadline = time.monotonic() + CLIENT_TIMEOUT_S
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline and self.connection.recv(CHUNK):
                pass

    def log_message(self, *_: Any) -> None:
        """Write nothing: `Worker.ask` writes what happens."""


def read_list(path: Path) -> Worker:
    """Return the worker of the plan's list, with an empty queue. Raises OSError or ValueError."""
    document = json.loads(path.read_text(encoding="utf-8"))
    queue = StartQueue(document["waiting"], document["stay_s"])
    return Worker(queue, document["deployments"], document["pairs"], document["active_states"])


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="edge-switch", description=__doc__)
    # The defaults are the places on a Spark; tests have others.
    own = {"list": LIST, "socket": SOCKET, "root-socket": ROOT_SOCKET, "switch": SWITCH}
    for name, default in {**own, "lock": LOCK, "config": CONFIG_DIR, "states": STATES}.items():
        parser.add_argument(f"--{name}", type=Path, default=default, help="default: %(default)s")
    parser.add_argument("--as-root", action="store_true", help="run vllm-switch for the line of standard input")
    args = parser.parse_args(argv)
    worker = read_list(args.list)
    if args.as_root:
        # A connection without a line would keep the place of another one.
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
        signal.alarm(int(CLIENT_TIMEOUT_S))
        line = sys.stdin.readline(MAX_LINE)
        signal.alarm(0)
        sys.stdout.write(as_root(line, worker.models, args.switch))
        return 0
    worker.root_socket, worker.lock = args.root_socket, args.lock
    worker.config_dir, worker.states = args.config, args.states
    # An error of the main thread ends the program, and systemd starts it again: a queue without a worker would stand.
    threading.Thread(target=RequestServer(args.socket, worker).serve_forever, daemon=True).start()
    worker.work()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
