"""What a rank does when its peers come and go, when its container ends and when the server answers. Pure: `Hands` act.

An attempt has at most one start, which ends on all ranks together; the process of the attempt ends with it. If a
container ends by itself, its rank tells its peers and waits for their answer: a peer that is gone or was stopped is the
reason. A rank that has given up stays without a container, and tells every peer that comes.

The links are a star: each worker has one, with the head. The head of several workers judges an end for all, so that all
count the same: it tells nobody before the next beat of each has shown that none is gone. What one worker counts reaches
the others through it, as does what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import Enum, auto
from typing import Protocol

from vllm_spark.node import starts, unit_limits
from vllm_spark.node.deployment_state import FAILED, GAVE_UP, LOADING, SERVING, WANTED
from vllm_spark.node.starts import Count, Moment, Record
from vllm_spark.node.supervise.host import Message

# Exit statuses: after an end from outside, a failed start, and a stop (SuccessExitStatus of the unit).
OVER, FAULT, STOPPED = 0, 1, 143
# The wait for the answer to an end. A peer that is gone is noticed earlier (link.READ_TIMEOUT_S).
ANSWER_S = 12.0


class Phase(Enum):
    """Where an attempt is. QUEUEING: the head takes the turns to load. ASKING: its container has ended, and not all
    peers have answered."""

    MEETING = auto()
    PAUSING = auto()
    QUEUEING = auto()
    STARTING = auto()
    RUNNING = auto()
    ASKING = auto()
    ENDING = auto()
    GIVEN_UP = auto()


class Hands(Protocol):
    """What an attempt can do. No method waits; what comes of it is a call of the attempt."""

    def now(self) -> Moment: ...
    def keep(self, step: Callable[[Record], Record]) -> Record: ...
    def state(self, state: str, why: str = "") -> None: ...
    def say(self, text: str) -> None: ...
    def send(self, peer: str, message: Message) -> None: ...
    def part(self) -> None: ...
    def run(self) -> None: ...
    def watch(self) -> None: ...
    def remove(self, *, gently: bool) -> None: ...
    def after(self, seconds: float, event: Callable[[], None]) -> None: ...
    def exit(self, status: int) -> None: ...
    def take_turn(self) -> None: ...
    def give_turn(self) -> None: ...


class Attempt:
    """`rank` is the number of this rank of the deployment `name`. `partners` are those that it is linked with: all
    others for the head, the head for a worker. `deadline_s` is that of a start. `in_turn` is the name of this host if
    one of the Sparks is shared: the head then takes the turn of each Spark, in the order of their names, so that no two
    deployments wait for each other. A turn is held from then until the server serves or its container is gone, and
    never while a rank waits for a peer."""

    in_turn = ""

    def __init__(self, hands: Hands, name: str, rank: int, partners: Sequence[str], deadline_s: float) -> None:
        self._number, self._lacking, self._asked = 0, list[str](), 0
        self.hands, self.name, self.rank, self.partners, self.deadline_s = hands, name, rank, partners, deadline_s
        self.phase = Phase.MEETING
        # Peer -> whether it counts starts. One of release 0.1.0 does not, and knows fewer messages.
        self.links: dict[str, bool] = {}
        self.serving = False
        self._told = False
        self._tries = 1
        self._answered: set[str] = set()
        self._why = self._gives_up = ""
        self._own = False
        # The head of several workers.
        self._several = not rank and len(partners) > 1
        self._status = STOPPED
        self._runs = False

    # Before a start

    def begin(self) -> None:
        """Begin the attempt."""
        self._settle(self.hands.keep(lambda record: record))

    def met(self, peer: str, count: Count | None) -> None:
        """Note that a peer is here. `count` is what it knows; None of a peer of release 0.1.0."""
        if peer in self.links:
            self.lost(peer, "it has begun again")
        if self.phase in (Phase.ASKING, Phase.ENDING):
            return
        self.links[peer] = count is not None
        self._learn(peer, count)

    def _learn(self, peer: str, count: Count | None) -> None:
        """Take what a peer counts, let the others know, and do what follows."""
        record = self.hands.keep(lambda old: starts.with_count(old, count) if count else old)
        for other in [other for other, counts in self.links.items() if counts and other != peer]:
            self.hands.send(other, {"count": asdict(record.count)})
        if self.phase is Phase.GIVEN_UP and not record.count.gave_up:
            self.hands.exit(OVER)  # a person has acted there, so this rank begins anew
        else:
            self._settle(record)

    def gave_up(self, why: str) -> None:
        """Note that a head of release 0.1.0 has given up."""
        self._settle(self.hands.keep(lambda record: starts.gives_up(record, why)))

    def _settle(self, record: Record) -> None:
        """Do what the count and the peers that are here allow."""
        self._give_turns()
        if record.count.gave_up:
            self._stay(record.count.gave_up)
        elif missing := [peer for peer in self.partners if peer not in self.links]:
            self.phase = Phase.MEETING
            self.wait(f"it waits for {' and '.join(missing)}")
        elif self.rank:
            self.phase = Phase.STARTING
            self.hands.state(WANTED, f"{self.partners[0]} is here, and begins the start")
        elif pause := starts.pause_s(record, self.hands.now()):
            self.phase = Phase.PAUSING
            self.wait(starts.paused(record, pause))
            self.hands.after(pause, self._paused)
        else:
            self._queue()

    def wait(self, why: str) -> None:
        """Write what this rank waits for. Workers that are here learn it from a head of several."""
        self.hands.state(WANTED, why)
        if self._several:
            self._tell({"waits": why})

    def _paused(self) -> None:
        if self.phase is Phase.PAUSING:
            self._queue()

    # The turns of the Sparks

    def _queue(self) -> None:
        self._number += 1
        self._lacking = sorted((self.in_turn, *self.partners)) if self.in_turn else []
        self.phase = Phase.QUEUEING
        self._take_next()

    def _take_next(self) -> None:
        """Take the turn of the next Spark, or start if this deployment has all of them."""
        if not self._lacking:
            self._start()
        elif self._lacking[0] == self.in_turn:
            self.hands.take_turn()
        else:
            self.wait(f"it waits for its turn to load on {self._lacking[0]}")
            self.hands.send(self._lacking[0], {"turn": "take", "number": self._number})

    def turn_waits(self, why: str) -> None:
        """Note what the turn of this Spark waits for."""
        if self.phase in (Phase.QUEUEING, Phase.STARTING):
            self.hands.state(WANTED, why)

    def turn_taken(self) -> None:
        """Note that this deployment has the turn of this Spark."""
        if self.phase is Phase.QUEUEING:
            self._taken(self.in_turn)
        elif self.phase is Phase.STARTING and self._asked:
            self.hands.send(self.partners[0], {"turn": "taken", "number": self._asked})
        else:
            self.hands.give_turn()

    def turn_overdue(self, why: str) -> None:
        """Note that the memory of the budget was not free in time. All ranks begin anew, after a pause."""
        if self.phase in (Phase.QUEUEING, Phase.STARTING):
            self._end(why, fault=False)

    def _taken(self, host: str) -> None:
        if self._lacking[:1] == [host]:
            self._lacking.pop(0)
            self._take_next()

    def _turn(self, peer: str, word: str, number: int) -> None:
        """Act on a message about turns. The head asks, and counts its questions: an answer may come too late."""
        if word == "taken" and self.phase is Phase.QUEUEING and number == self._number:
            self._taken(peer)
        elif word == "take" and self.phase is Phase.STARTING:
            self._asked = number
            self.hands.take_turn()
        elif word == "give" and self.phase is Phase.STARTING:
            self._asked = 0
            self.hands.give_turn()

    def _give_turns(self) -> None:
        """Give the turns back, because not all ranks are here or the server serves."""
        if not self.in_turn:
            return
        self._asked = 0
        self.hands.give_turn()
        if self.phase is Phase.QUEUEING:
            self._tell({"turn": "give", "number": self._number})

    def _stay(self, why: str) -> None:
        """Stay without a container, because the deployment has given up."""
        if self.phase is not Phase.GIVEN_UP:
            self.hands.say(starts.farewell(self.name, why))
        self.phase = Phase.GIVEN_UP
        self.hands.state(GAVE_UP, why)
        for peer in [peer for peer, counts in self.links.items() if not counts]:
            self.hands.send(peer, {"bye": why, "kind": "gave_up"})

    # A start

    def _start(self) -> None:
        """Begin a start of all ranks. The workers run when the head says so."""
        start = starts.new_id()
        for peer in [peer for peer, counts in self.links.items() if counts]:
            self.hands.send(peer, {"begin": start})
        self._begin(start)
        self.hands.run()
        self.hands.watch()

    def _begin(self, start: str) -> None:
        now = self.hands.now()
        self.phase = Phase.RUNNING
        self.hands.keep(lambda record: starts.begun(record, start, now))
        self.hands.state(LOADING)
        are = "are" if self._several else "is"
        self.hands.say(f"{' and '.join(self.partners)} {are} here; starting rank {self.rank}")

    def listens(self) -> None:
        """Note that the workers of this head may run."""
        if self.phase is Phase.RUNNING:
            self._tell({"start": 1})

    def serves(self) -> None:
        """Note that the API of this head answers."""
        if self.phase is Phase.RUNNING:
            self.hands.say("the API answers")
            self._tell({"serving": 1})
            self._serve()

    def received(self, peer: str, message: Message) -> None:
        """Act on a message of a peer."""
        if "bye" in message:
            self._bye(peer, str(message["bye"]), str(message.get("kind")))
        elif self.phase is Phase.ASKING and self._several:
            self._answers(peer)
        elif "turn" in message:
            self._turn(peer, str(message["turn"]), int(message["number"]))
        elif "count" in message:
            if self.phase in (Phase.STARTING, Phase.GIVEN_UP):
                self._learn(peer, starts.count_of(message["count"]))
        elif self.phase is Phase.STARTING and "waits" in message:
            self.hands.state(WANTED, f"{peer} is here: {message['waits']}")
        elif self.phase is Phase.STARTING and "begin" in message:
            self._begin(str(message["begin"]))
        elif self.phase in (Phase.STARTING, Phase.RUNNING) and "start" in message:
            self._run_worker(peer)
        elif self.phase is Phase.RUNNING and "serving" in message:
            self.hands.say(f"{peer} serves")
            self._serve()

    def _run_worker(self, peer: str) -> None:
        if self.phase is Phase.STARTING:
            self._begin(starts.new_id())  # a head of release 0.1.0 gives a start no id
        if self._told:
            self.hands.say(f"{peer} has begun again, and so does rank {self.rank}")
        self._told = True
        self.hands.run()

    def _serve(self) -> None:
        self.serving = True
        self._give_turns()
        self.hands.state(SERVING)
        self.hands.after(unit_limits.GOOD_S, self._good)

    def _good(self) -> None:
        if self.phase is Phase.RUNNING:
            self.hands.keep(starts.good)

    # Its end

    def container_ended(self, why: str, slow: str = "", running_s: float = 0.0) -> None:
        """Note the end of this rank's container. `slow` is the line by which Ray says that it has not started within a
        time limit of its own, which a busy machine passes: the recipe's deadline holds for the start."""
        if self.phase is not Phase.RUNNING:
            return
        if slow and not self.serving and running_s < self.deadline_s:
            self._tries += 1
            self.hands.say(f"the start of rank {self.rank} failed: {slow}; {starts.nth(self._tries)} try")
            self.hands.run()
            if not self.rank:
                self.hands.watch()
            return
        self._ask(why, own=True)

    def _ask(self, why: str, *, own: bool) -> None:
        """Ask whether all peers are still here. `own`: the container of this rank has ended."""
        self.phase, self._why, self._own = Phase.ASKING, why, own
        if not self._several:
            self._tell({"bye": f"{why} (rank {self.rank})", "kind": "ended"})
        self.hands.after(ANSWER_S, self._unanswered)

    def _answers(self, peer: str) -> None:
        """Note that a peer is still here."""
        self._answered.add(peer)
        if self._answered >= set(self.partners):
            self._end(self._why, fault=True, own=self._own)

    def docker_ended(self, why: str) -> None:
        """Note that Docker has ended on this Spark, and the container with it."""
        if self.phase is Phase.RUNNING:
            self._end(why, fault=False)

    def _unanswered(self) -> None:
        silent = [peer for peer in self.partners if peer not in self._answered]
        if self.phase is Phase.ASKING and silent:
            self._end(f"{silent[0]} is lost: it does not answer", fault=False)

    def _bye(self, peer: str, why: str, kind: str) -> None:
        if kind == "gave_up":
            self.hands.keep(lambda record: starts.gives_up(record, why))
        fault = kind != "stopped"
        if self.phase is Phase.RUNNING and fault and self._several:
            self._ask(f"{peer} is lost: {why}", own=False)
        if self.phase is Phase.ASKING and fault:
            self._answers(peer)
        elif self.phase in (Phase.RUNNING, Phase.ASKING):
            self._end(f"{peer} is lost: {why}", fault=fault)
        elif self.phase is not Phase.ENDING:  # it will hear why this rank ends
            self.lost(peer, why)

    def lost(self, peer: str, how: str) -> None:
        """Note that the connection with a peer is gone."""
        if self.links.pop(peer, None) is None:
            return
        if self.phase in (Phase.RUNNING, Phase.ASKING):
            self._end(f"{peer} is lost: {how}", fault=False)
        elif self.phase in (Phase.PAUSING, Phase.QUEUEING, Phase.STARTING):
            self.hands.say(f"{peer} is lost before the start: {how}")
            self._settle(self.hands.keep(lambda record: record))

    def _end(self, why: str, *, fault: bool, own: bool = False) -> None:
        """End the start on this rank, and tell the others. `own`: its fault was that of this rank."""
        self.phase, now = Phase.ENDING, self.hands.now()
        record = self.hands.keep(lambda old: starts.failed(old, why) if fault else starts.left(old, now))
        self._gives_up, self._status = record.count.gave_up, FAULT if fault else OVER
        self.hands.say(f"ending rank {self.rank}: {why}")
        if own and not self._gives_up:
            self.hands.say(f"the start of rank {self.rank} failed: {why}; it starts again")
        self.hands.state(
            *((FAILED, why) if fault else (WANTED, f"{why}; it starts again with {' and '.join(self.partners)}"))
        )
        for peer, counts in self.links.items():
            kind = "gave_up" if self._gives_up and not counts else "ended" if fault else "stopped"
            self.hands.send(peer, {"bye": f"{why} (rank {self.rank})", "kind": kind})
        self.hands.remove(gently=False)

    def removed(self) -> None:
        """Note that the container is gone."""
        self._give_turns()
        if self._gives_up:
            self.links.clear()
            self.hands.part()
            self._stay(self._gives_up)
        else:
            self.hands.exit(self._status)

    def stopping(self) -> None:
        """Note that systemd stops the unit: a container that ends now has no fault."""
        self._runs = self.phase in (Phase.RUNNING, Phase.ASKING)
        self.phase, self._status, self._gives_up = Phase.ENDING, STOPPED, ""

    def stop(self, why: str) -> None:
        """End, because systemd stops the unit. The unit notes why."""
        self.hands.say(f"ending rank {self.rank}: it was stopped: {why}")
        self._tell({"bye": f"it was stopped: {why} (rank {self.rank})", "kind": "stopped"})
        # A head has requests to finish.
        self.hands.remove(gently=self._runs and not self.rank)

    def _tell(self, message: Message) -> None:
        for peer in self.links:
            self.hands.send(peer, message)
