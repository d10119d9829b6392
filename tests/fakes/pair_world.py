"""Sparks with one server, in simulated time: systemd, Docker, cables, an engine, and persons. What decides in it is
the toolkit's own code: the attempts of the supervisors, the count of starts, the state program, liveness."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.node import deployment_state, endings, liveness, starts, state_writer, unit_events, unit_limits
from vllm_spark.node.deployment_state import DRAINING, FAILED, GAVE_UP, LOADING, SERVING, STOPPED, WANTED, State
from vllm_spark.node.starts import Moment, Record
from vllm_spark.node.supervise import link
from vllm_spark.node.supervise.attempt import Attempt

NAME = "pair"
DEADLINE_S, LOAD_S = 900.0, 120.0
BOOT_S, RESTART_S, RETRY_S, PROBE_S = 30.0, 5.0, 2.0, 15.0
# The ranks, and what an edge says, may lag behind by this.
LAG_S = 30.0


class World:
    """The server, its surroundings and the laws. `broken` engines end while they load; `hung` ones give no token.
    `links` are those of the workers with the head, by their ranks, and `cut` are the workers without a cable."""

    def __init__(self, seed: int, ranks: int = 2) -> None:
        self.now, self.random = 0.0, random.Random(seed)  # noqa: S311  no secret
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.sparks = tuple(Spark(self, rank) for rank in range(ranks))
        self.links: dict[int, Link] = {}
        self.cut: set[int] = set()
        self.broken = self.hung = False
        self.current = self.sparks[0]
        self.violations: list[str] = []
        # Starts that ended by a fault of their own, and those that ended with their Spark, with the time.
        self.faulty: set[str] = set()
        self.dead: dict[str, float] = {}
        self.serving_since = self.gave_up_at = math.inf
        self.forgot_at = 0.0
        self._apart_since = self._disagree_since = 0.0
        self.at(0, self._watch)

    def at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), event))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, event = heapq.heappop(self._queue)
            event()
        self.now = end

    def violated(self, law: str) -> None:
        self.violations.append(f"{self.now:.0f} s: {law}: {[spark.said() for spark in self.sparks]}")

    # What happens to them

    def cut_cable(self, rank: int, seconds: float) -> None:
        """Cut a worker from the head, or the head from all."""
        for worker in {rank} if rank else set(range(1, len(self.sparks))):
            if worker not in self.cut:
                self._cut(worker, seconds)

    def _cut(self, worker: int, seconds: float) -> None:
        self.cut.add(worker)
        self.at(seconds, lambda: self.cut.discard(worker))
        if (cut := self.links.get(worker)) and seconds >= link.READ_TIMEOUT_S:
            self.at(link.READ_TIMEOUT_S, lambda: cut.lost(f"silent for {link.READ_TIMEOUT_S:.0f} s"))

    def links_of(self, rank: int) -> list[Link]:
        """Return the links of a Spark: all of them for the head."""
        return [one for worker, one in self.links.items() if rank in (0, worker)]

    def acted(self) -> None:
        """Note that a person has acted."""
        # What happens during the stop that she asks for is forgotten, too.
        self.gave_up_at, self.forgot_at = math.inf, self.now + RESTART_S

    def deploy(self) -> None:
        self.broken = self.hung = False
        for spark in self.sparks:
            spark.person("restart")

    # The laws

    def _watch(self) -> None:
        self.at(1, self._watch)
        serve = all(spark.state["state"] == SERVING for spark in self.sparks)
        self.serving_since = min(self.serving_since, self.now) if serve else math.inf
        # The ranks see it some seconds apart, so what must have been forgotten is less than what may have been.
        if self.now - self.serving_since > unit_limits.GOOD_S - LAG_S:
            self.forgot_at = self.now
        if self.now - self.serving_since > unit_limits.GOOD_S + LAG_S:
            self.faulty.clear()
            self.dead.clear()
        if self.cut or not all(spark.reachable for spark in self.sparks):
            self._apart_since = self._disagree_since = self.now
            return
        if self.now - self._apart_since < LAG_S or len({spark.word for spark in self.sparks}) == 1:
            self._disagree_since = self.now
        elif self.now - self._disagree_since == LAG_S + 1:
            self.violated("the ranks disagree")
        for spark in self.sparks:
            if spark.state["state"] == STOPPED and spark.unit in ("active", "activating"):
                self.violated("an edge names a command while the model starts")


@dataclass
class Container:
    born: float
    on_end: Callable[[int], None]
    alive: bool = True
    loaded: bool = False

    def end(self, status: int) -> None:
        if self.alive:
            self.alive = False
            self.on_end(status)


@dataclass
class Spark:
    """One Spark and its rank."""

    world: World
    rank: int
    up: bool = True
    docker: bool = True
    unit: str = "inactive"
    job: str = ""
    docker_job: str = ""
    shutdown: bool = False
    held: bool = False  # a person has stopped it
    booted: float = 0.0
    boots: int = 0
    record: Record = field(default_factory=Record)
    state: State = field(default_factory=lambda: unwritten(Record()))
    process: Process | None = None
    container: Container | None = None
    began: list[float] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"spark{self.rank + 1}"

    @property
    def others(self) -> list[Spark]:
        return [spark for spark in self.world.sparks if spark is not self]

    @property
    def reachable(self) -> bool:
        return self.up and not self.held and not self.shutdown and self.world.now - self.booted > LAG_S

    @property
    def word(self) -> str:
        """What a client reads of this Spark, as the edge's map of states decides it."""
        state = self.state["state"]
        return "answers" if state in (SERVING, DRAINING) else "loading" if state in deployment_state.ACTIVE else state

    def said(self) -> str:
        return f"{self.name} {self.unit} {deployment_state.described(self.state)} {self.record.count}"

    def moment(self) -> Moment:
        return Moment(f"boot {self.boots}", self.world.now, self.world.now - self.booted)

    def write(self, state: str, why: str = "", after: Any = (), start: str | None = None, peers: Any = None) -> State:
        if state_writer.may_follow(self.state, after, start):
            self.state = state_writer.following(self.state, state, why, peers, self.record)
        return self.state

    def keep(self, step: Callable[[Record], Record]) -> Record:
        before = self.record.count
        self.record = step(self.record)
        faults, deaths = len(self.world.faulty), len(self.world.dead)
        early = faults < unit_limits.MAX_STARTS and deaths < unit_limits.MAX_DEATHS
        if early and self.record.count.gave_up and not before.gave_up:
            self.world.violated(f"it gave up after {faults} faults and {deaths} deaths")
        newest = all(self.record.count.era >= spark.record.count.era for spark in self.others)
        if self.record.count.gave_up and not before.gave_up and newest:
            self.world.gave_up_at = min(self.world.gave_up_at, self.world.now)
        return self.record

    # systemd

    def start(self) -> None:
        now = self.world.now
        if not self.up or self.unit == "active":
            return
        self.began = [at for at in self.began if now - at < unit_limits.WITHIN_S]
        if len(self.began) >= unit_limits.MAX_UNIT_STARTS:
            self.unit = "failed"
            self.world.violated("systemd's own limit is reached")
            return
        self.began.append(now)
        self.unit, self.held = "active", False
        self.world.current = self
        unit_events.starts(NAME)
        self.process = Process(self)

    def stop(self, job: str, docker_job: str = "", shutdown: bool = False) -> None:
        """Run a job that stops the unit, and what follows it."""
        self.job, self.docker_job, self.shutdown = job, docker_job, shutdown
        if self.process:
            process = self.process
            process.attempt.stopping()
            self.world.at(0.2, process.stop)
        else:
            self._job_done()

    def person(self, job: str) -> None:
        """Let a person stop, start or restart the unit."""
        if not self.up or self.job:
            return
        self.world.acted()
        if job == "start":
            if self.unit != "active":
                self.began.clear()
                self.start()
        elif self.unit == "active":
            self.held = job == "stop"
            self.stop(job)
        elif job == "restart":
            self.unit = "inactive"
            self.began.clear()
            self.start()

    def process_ended(self, status: int | None) -> None:
        """Run what follows the end of the main process: ExecStopPost, then a job or the restart. None: a kill."""
        self.process = None
        if self.container:
            self.container.alive = False
        for lost in self.world.links_of(self.rank):
            self.world.at(0.01, functools.partial(lost.lost, "the connection was closed"))
        result = "signal" if status is None else "success" if status in (0, 143) else "exit-code"
        self.world.current = self
        killed = {"EXIT_CODE": "killed", "EXIT_STATUS": "KILL"}
        unit_events.ended(
            NAME,
            {"SERVICE_RESULT": result, "EXIT_CODE": "exited", "EXIT_STATUS": str(status)}
            | (killed if status is None else {}),
        )
        if self.job:
            self._job_done()
        else:
            self.unit, boot = "activating", self.boots
            self.world.at(RESTART_S, lambda: self.start() if self.unit == "activating" and boot == self.boots else None)

    def _job_done(self) -> None:
        job, self.job, self.docker_job, boots = self.job, "", "", self.boots
        self.unit = "inactive"
        if self.shutdown:
            self.down(orderly=True)
        elif job == "restart":
            self.unit = "activating"
            self.world.at(1, lambda: self.start() if boots == self.boots and self.unit == "activating" else None)

    def systemctl(self, *words: str) -> str:
        """Return what systemctl prints, and do what it does."""
        match words[0]:
            case "reset-failed":
                self.began.clear()
            case "list-jobs":
                jobs = {f"vllm@{NAME}.service": self.job, endings.DOCKER: self.docker_job}
                return "".join(f"1 {unit} {job} running\n" for unit, job in jobs.items() if job)
            case "is-system-running":
                return "stopping" if self.shutdown else "running"
        return ""

    def fault(self, status: int, container: Container | None = None) -> None:
        """Let the container end by a fault of its own."""
        container = container or self.container
        if container and container.alive:
            if self.record.start and not self.record.start.good:
                self.world.faulty.add(self.record.id)
            container.end(status)

    def kill_supervisor(self) -> None:
        if self.process:
            if self.record.start and self.record.runs and not self.record.start.good:
                self.world.faulty.add(self.record.id)
            self.process.kill()

    # Its power

    def down(self, orderly: bool = False) -> None:
        """Lose the power, or end a shutdown."""
        if not self.up:
            return
        if not orderly and self.record.runs and self.record.start and not self.record.start.good:
            self.world.dead[self.record.id] = self.world.now
        process, self.process = self.process, None
        if process:
            process.alive = False
        if self.container:
            self.container.alive = False
        self.up, self.unit, self.job, self.shutdown = False, "inactive", "", False
        for lost in self.world.links_of(self.rank):
            self.world.at(link.READ_TIMEOUT_S, functools.partial(lost.lost, f"silent for {link.READ_TIMEOUT_S:.0f} s"))
            lost.dead = process
        self.world.at(self.world.random.uniform(BOOT_S, 4 * BOOT_S), self.boot)

    def boot(self) -> None:
        self.up, self.booted, self.boots = True, self.world.now, self.boots + 1
        self.state, self.memory = unwritten(self.record), {}
        self.began.clear()
        if not self.held:
            self.world.at(5, self.start)


def unwritten(record: Record) -> State:
    state, why = (GAVE_UP, record.count.gave_up) if record.count.gave_up else (WANTED, "")
    return State(state=state, why=why, since=0.0, last_end="", peers=[], start="", failed=0, written=False)


@dataclass
class Link:
    """The connection of the head's process and a worker's. Both send a beat."""

    world: World
    ends: tuple[Process, Process]
    open: bool = True
    dead: Process | None = None

    def __post_init__(self) -> None:
        if len(self.world.sparks) > 2:  # the head of a pair reads no beat
            self.world.at(link.BEAT_S, self._beat)

    def _beat(self) -> None:
        if self.open:
            self.world.at(link.BEAT_S, self._beat)
            for end in self.ends:
                self.send(end, {"beat": 1})

    def send(self, sender: Process, message: dict[str, Any]) -> None:
        if sender.alive:
            self.world.at(0.01, lambda: self._deliver(sender, message))

    def _deliver(self, sender: Process, message: dict[str, Any]) -> None:
        if not self.open or self.dead is sender:
            return
        to = self.ends[self.ends[0] is sender]
        if self.ends[1].spark.rank in self.world.cut:
            self.world.at(0.5, lambda: self._deliver(sender, message))
        elif to.alive:
            to.attempt.received(sender.spark.name, message)

    def lost(self, how: str) -> None:
        if not self.open:
            return
        self.open = False
        worker = self.ends[1].spark.rank
        if self.world.links.get(worker) is self:
            del self.world.links[worker]
        for end, peer in (self.ends, self.ends[::-1]):
            if end.alive:
                end.attempt.lost(peer.spark.name, how)


class Process:
    """The process of a supervisor: the hands of its attempt."""

    def __init__(self, spark: Spark) -> None:
        self.spark, self.world, self.alive = spark, spark.world, True
        self.runs = self.watches = 0
        partners = [other.name for other in spark.others][: 1 if spark.rank else None]
        self.attempt = Attempt(self, NAME, spark.rank, partners, DEADLINE_S)
        self.after(0.3, self._begin)
        self.begun = False

    def _begin(self) -> None:
        self.begun = True
        self.attempt.begin()
        if self.spark.rank:
            self._find_head()
        else:
            self.after(PROBE_S, self._probe)

    def _find_head(self) -> None:
        self.after(RETRY_S, self._find_head)
        head, rank = self.world.sparks[0].process, self.spark.rank
        if rank in self.world.links or rank in self.world.cut or not (head and head.begun and head.alive):
            return
        self.world.links[rank] = Link(self.world, (head, self))
        self.attempt.met(head.spark.name, head.spark.record.count)
        if self.alive:
            head.attempt.met(self.spark.name, self.spark.record.count)

    def stop(self) -> None:
        if self.alive:
            self.world.current = self.spark
            asked = endings.asked(NAME, unit_events.PLACES)
            self.attempt.stop(asked.why if asked else "")

    # Hands

    def now(self) -> Moment:
        return self.spark.moment()

    def keep(self, step: Callable[[Record], Record]) -> Record:
        return self.spark.keep(step)

    def state(self, state: str, why: str = "") -> None:
        self.spark.write(state, why, peers=[spark.name for spark in self.spark.others])

    def say(self, text: str) -> None:
        """Say nothing: no law is about the journal."""

    def send(self, peer: str, message: dict[str, Any]) -> None:
        worker = self.spark.rank or next(spark.rank for spark in self.spark.others if spark.name == peer)
        if worker in self.world.links:
            self.world.links[worker].send(self, message)

    def part(self) -> None:
        for one in self.world.links_of(self.spark.rank):
            one.lost("it has given up")

    def run(self) -> None:
        self.runs += 1
        run = self.runs
        if self.spark.container:
            self.spark.container.alive = False
        self.after(0.5, lambda: self._create(run))

    def _create(self, run: int) -> None:
        if run != self.runs:
            return
        since = max(self.world.forgot_at, self.world.now - unit_limits.WITHIN_S)
        near = [at for at in self.world.dead.values() if at > since]
        if self.world.now - self.world.gave_up_at > LAG_S or (
            not self.spark.rank and len(near) >= unit_limits.MAX_DEATHS
        ):
            self.world.violated("it starts though it has given up, or two Sparks went down under it")
        container = Container(self.world.now, lambda status: self.after(0.1, lambda: self._ended(status, run)))
        self.spark.container = container
        if self.world.broken:
            self.after(self.world.random.uniform(3, 60), lambda: self.spark.fault(1, container))
        if self.spark.rank == 0:
            self.after(LOAD_S * self.world.random.uniform(0.5, 1.5), lambda: self._load(container))

    def _load(self, container: Container) -> None:
        """Let the engine have loaded, if its other ranks run since long enough."""
        if container.alive and self._others_run() and not self.world.hung:
            container.loaded = True
        elif container.alive:
            self.after(LOAD_S, lambda: self._load(container))

    def _ended(self, status: int, run: int) -> None:
        if run != self.runs:
            return
        was = self.spark.state
        hung = was["state"] == FAILED and was["start"] == self.spark.record.id
        self.attempt.container_ended(was["why"] if hung else endings.of_container(status))

    def watch(self) -> None:
        self.watches += 1
        self._poll(self.watches, listened=False)

    def _poll(self, watch: int, *, listened: bool) -> None:
        container = self.spark.container
        if watch != self.watches:
            return
        if not listened and container and container.alive and self.world.now - container.born > 2:
            listened = True
            self.attempt.listens()
        if container and container.alive and container.loaded:
            self.attempt.serves()
            return
        self.after(1, lambda: self._poll(watch, listened=listened))

    def remove(self, *, gently: bool) -> None:
        self.runs += 1
        self.watches += 1
        if self.spark.container:
            self.spark.container.alive = False
            self._disturb_peer()
        self.after(3 if gently else 0.5, self.attempt.removed)

    def _disturb_peer(self) -> None:
        """An engine notices that another rank is gone, or hangs."""
        for peer in [spark.container for spark in self.spark.others]:
            if peer and peer.alive and self.world.random.random() < 0.5:
                self.world.at(self.world.random.uniform(0, 3), functools.partial(peer.end, 1))

    def _others_run(self) -> bool:
        return all(spark.container and spark.container.alive for spark in self.spark.others)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.world.at(seconds, lambda: event() if self.alive else None)

    def exit(self, status: int) -> None:
        self.alive = False
        self.spark.process_ended(status)

    def kill(self) -> None:
        self.alive = False
        self.spark.process_ended(None)

    # Liveness, on the head

    def _probe(self) -> None:
        self.after(PROBE_S, self._probe)
        spark, container = self.spark, self.spark.container
        now, record = spark.state, spark.record
        if now["state"] not in (LOADING, SERVING, DRAINING):
            return
        healthy = bool(container and container.alive and self._others_run()) and not self.world.hung
        answers = healthy and container is not None and container.loaded
        counters = (
            f'vllm:generation_tokens_total{{engine="0"}} {1.0 if answers else 0.0}'
            if container and container.loaded
            else ""
        )
        probe: liveness.TokenProbe = {
            "answered": answers, "refused": False, "progress": counters, "moves": False, "deadline_s": DEADLINE_S,
            "running_s": liveness.running_s(record, now, spark.moment()), "detail": "timed out",
        }  # fmt: skip
        memory, why = liveness.judge(liveness.remembered(spark.memory, record.id), probe)
        spark.memory = {**memory, "start": record.id}
        if not why:
            return
        if healthy and self.world.now - (container.born if container else 0) < DEADLINE_S:
            self.world.violated(f"liveness ends a healthy engine: {why}")
        spark.write(FAILED, f"it hung: {why}", after=(LOADING, SERVING, DRAINING), start=now["start"])
        self.world.hung = False
        spark.fault(137)


class MemoryRecords:
    """starts.py for the state program, with the record of the world's current Spark in place of a file."""

    def __init__(self, world: World) -> None:
        self.world = world

    def read(self, *_: Any) -> Record:
        return self.world.current.record

    def change(self, _name: str, _places: Any, step: Callable[[Record], Record]) -> Record:
        return self.world.current.keep(step)

    def moment(self, _places: Any) -> Moment:
        return self.world.current.moment()

    def __getattr__(self, name: str) -> Any:
        return getattr(starts, name)
