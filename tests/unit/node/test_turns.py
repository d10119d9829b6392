"""The turns to load: two pairs on the same two Sparks with their heads swapped, and a server of one Spark on each, in
simulated time with random delays, crashes and losses of the link (issue 52).

The laws: one engine loads on a Spark at a time, no rank holds a turn while it waits for a peer, and once nothing
disturbs them any more all of them serve."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from vllm_spark.node import turn as turns
from vllm_spark.node import unit_limits
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.starts import Moment, Record
from vllm_spark.node.supervise.attempt import Attempt, Phase
from vllm_spark.node.turn import Turn

HISTORIES = 30
WITHOUT_TURN = (Phase.MEETING, Phase.PAUSING, Phase.GIVEN_UP)


class World:
    def __init__(self, seed: int) -> None:
        self.random, self.now = random.Random(seed), 0.0  # noqa: S311  no secret
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.holders: dict[str, str] = {}
        self.violations: list[str] = []
        self.ranks = [
            Rank(self, name, number, host)
            for name, hosts in (("pair", ("spark1", "spark2")), ("swapped", ("spark2", "spark1")))
            for number, host in enumerate(hosts)
        ]

    def at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), event))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, event = heapq.heappop(self._queue)
            event()
            self._judge()
        self.now = end

    def _judge(self) -> None:
        for host in ("spark1", "spark2"):
            loading = [one.name for one in self.ranks if one.host == host and one.loads]
            if len(loading) > 1 or (loading and self.holders.get(host) != loading[0]):
                self.violations.append(
                    f"{self.now:.1f}: {loading} load on {host}, {self.holders.get(host)} has its turn"
                )
        for one in self.ranks:
            if self.holders.get(one.host) == one.name and one.alive and one.attempt.phase in WITHOUT_TURN:
                self.violations.append(f"{self.now:.1f}: {one.name} holds {one.host} in {one.attempt.phase}")

    def lone_server(self, host: str) -> None:
        """Let a server of one Spark load, as take_turn.py does, and crash or serve."""
        name = f"lone on {host}"
        if self.holders.setdefault(host, name) != name:
            self.at(1, lambda: self.lone_server(host))
        else:
            self.at(self.random.uniform(1, 90), lambda: self.holders.pop(host, None) and None)


@dataclass
class Rank:
    """The supervisor of a rank: the hands of its attempt."""

    world: World
    name: str
    number: int
    host: str
    record: Record = field(default_factory=Record)
    alive: bool = False
    loads: bool = False
    life: int = 0
    asked: int = 0
    linked: int = 0  # the number of its link; 0 is none
    last: float = 0.0

    @property
    def peer(self) -> Rank:
        return next(one for one in self.world.ranks if one.name == self.name and one is not self)

    def start(self) -> None:
        self.life, self.alive = self.life + 1, True
        self.attempt = Attempt(self, self.name, self.number, [self.peer.host], 900)
        self.attempt.in_turn = self.host
        self.attempt.begin()
        self._connect()

    def _connect(self) -> None:
        self.after(2, self._connect)
        if self.number and not self.linked and self.peer.alive and not self.peer.linked:
            self.linked = self.peer.linked = next(self.world._order) + 1
            self.attempt.met(self.peer.host, self.peer.record.count)
            if self.alive and self.peer.alive:
                self.peer.attempt.met(self.host, self.record.count)

    def cut(self) -> None:
        """Lose the link, on both sides."""
        link, peer = self.linked, self.peer
        if not link:
            return
        self.linked = peer.linked = 0
        for one, other in ((self, peer), (peer, self)):
            if one.alive:
                one.attempt.lost(other.host, "cut")

    def die(self) -> None:
        """End without a word: the kernel gives its turn back, and systemd starts it again."""
        self.alive, self.loads = False, False
        self.life += 1
        self.give_turn()
        self.world.at(0.1, self.cut)
        life = self.life
        self.world.at(5, lambda: self.start() if life == self.life else None)

    # Hands

    def now(self) -> Moment:
        return Moment("boot", self.world.now, self.world.now)

    def keep(self, step: Callable[[Record], Record]) -> Record:
        self.record = step(self.record)
        return self.record

    def state(self, state: str, why: str = "") -> None:
        """No law is about a state."""

    def say(self, text: str) -> None:
        """No law is about the journal."""

    def send(self, peer: str, message: dict[str, Any]) -> None:
        link, to, self.last = (
            self.linked,
            self.peer,
            max(self.last, self.world.now) + self.world.random.uniform(0.01, 0.4),
        )
        self.world.at(
            self.last - self.world.now,
            lambda: to.attempt.received(self.host, message) if to.alive and link and to.linked == link else None,
        )

    def part(self) -> None:
        self.cut()

    def run(self) -> None:
        self.loads = True

    def watch(self) -> None:
        self.after(1, self.attempt.listens)
        self.after(self.world.random.uniform(2, 60), self._serve)

    def _serve(self) -> None:
        if self.attempt.phase is Phase.RUNNING and self.peer.loads:
            self.loads = self.peer.loads = False
            self.attempt.serves()
        elif self.attempt.phase is Phase.RUNNING:
            self.after(1, self._serve)

    def remove(self, *, gently: bool) -> None:
        self.loads = False
        self.after(0.5, self.attempt.removed)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        life = self.life
        self.world.at(seconds, lambda: event() if self.alive and life == self.life else None)

    def exit(self, status: int) -> None:
        self.die()

    def take_turn(self) -> None:
        self.asked += 1
        self._poll(self.asked)

    def _poll(self, asked: int) -> None:
        if asked != self.asked:
            return
        if self.world.holders.setdefault(self.host, self.name) == self.name:
            self.attempt.turn_taken()
        else:
            self.after(self.world.random.uniform(0.2, 1), lambda: self._poll(asked))

    def give_turn(self) -> None:
        self.asked += 1
        if self.world.holders.get(self.host) == self.name:
            del self.world.holders[self.host]


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_all_serve_in_the_end_and_none_loads_beside_another(seed: int) -> None:
    world = World(seed)
    for one in world.ranks:
        world.at(world.random.uniform(0, 3), one.start)
    for host in ("spark1", "spark2"):
        world.at(world.random.uniform(0, 20), lambda host=host: world.lone_server(host))  # type: ignore[misc]
    for _ in range(world.random.randrange(8) if seed else 0):
        one = world.random.choice(world.ranks)
        world.at(world.random.uniform(5, 400), world.random.choice((one.die, one.cut)))
    world.run(6000)
    assert not world.violations
    assert [one.attempt.serving and one.attempt.phase is Phase.RUNNING for one in world.ranks] == [True] * 4
    assert not world.holders


def test_a_late_answer_of_a_worker_counts_for_nothing() -> None:
    """Of three ranks one is lost while another takes its turn: the head gives that back, and asks anew."""
    world = World(0)
    head = world.ranks[0]
    sent: list[dict[str, Any]] = []
    head.send = lambda peer, message: sent.append(message)  # type: ignore[method-assign]
    head.attempt = Attempt(head, "pair", 0, ["spark2", "spark3"], 900)
    head.attempt.in_turn = "spark9"
    head.attempt.begin()
    for peer in ("spark2", "spark3", "spark3"):
        head.attempt.met(peer, head.record.count)
    turns_ = [message for message in sent if "turn" in message]
    assert [(one["turn"], one["number"]) for one in turns_] == [("take", 1), ("give", 1), ("take", 2)]
    head.attempt.received("spark2", {"turn": "taken", "number": 1})
    assert head.attempt.phase is Phase.QUEUEING
    assert len([message for message in sent if "turn" in message]) == 3
    head.attempt.received("spark2", {"turn": "taken", "number": 2})
    assert sent[-1] == {"turn": "take", "number": 2}


def test_the_turn_of_a_spark_is_held_by_one_and_ends_with_it(tmp_path: Any) -> None:
    places = Places(run=str(tmp_path))
    one, other = Turn("one", places), Turn("other", places)
    assert (one.take(), one.take(), other.take()) == ("", "", "one")
    one.give()
    assert (other.take(), one.take()) == ("", "other")


def test_a_start_waits_for_its_memory(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chat").mkdir()
    room = '{"room": {"share": 0.1, "bytes": 21474836480, "beside_bytes": 0, "floor_bytes": 1073741824}}'
    (tmp_path / "chat" / "deployed.json").write_text(room)
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(unit_limits, "MEMINFO", meminfo)
    turn = Turn("chat", Places(config=str(tmp_path)))
    meminfo.write_text("MemTotal: 104857600 kB\nMemAvailable: 20971520 kB\n")
    assert turn.lacks() == "20.0 GiB of memory are available, and chat needs 21.0"
    assert "docs/runbooks/gpu-memory-held.md" in turns.overdue(turn.lacks())
    meminfo.write_text("MemTotal: 104857600 kB\nMemAvailable: 22020096 kB\n")
    assert not turn.lacks()
