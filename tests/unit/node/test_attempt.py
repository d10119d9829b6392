"""The attempt of a rank, step by step: what it tells its peers, and which end is its own fault. test_pair_histories.py
lets two of them live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vllm_spark.node import starts
from vllm_spark.node.starts import Count, Moment, Record
from vllm_spark.node.supervise.attempt import FAULT, OVER, STOPPED, Attempt
from vllm_spark.node.unit_limits import MAX_STARTS

HERE = Count()
# A peer of release 0.1.0.
OLD = None
DEADLINE_S = 600.0


class Recorder:
    """Hands that write down what an attempt does."""

    def __init__(self, rank: int = 0, partners: tuple[str, ...] = ("spark2",), record: Record | None = None) -> None:
        self.record, self.seconds = record or Record(), 0.0
        self.did: list[str] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.states: list[tuple[str, str]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.attempt = Attempt(self, "demo", rank, partners, DEADLINE_S)
        self.attempt.begin()

    def now(self) -> Moment:
        return Moment("boot", 1e9 + self.seconds, self.seconds)

    def keep(self, step: Callable[[Record], Record]) -> Record:
        self.record = step(self.record)
        return self.record

    def state(self, state: str, why: str = "") -> None:
        self.states.append((state, why))

    def say(self, text: str) -> None:
        self.did.append(text)

    def send(self, peer: str, message: dict[str, Any]) -> None:
        self.sent.append((peer, message))

    def part(self) -> None:
        self.did.append("part")

    def run(self) -> None:
        self.did.append("run")

    def watch(self) -> None:
        self.did.append("watch")

    def remove(self, *, gently: bool) -> None:
        self.did.append(f"remove{' gently' if gently else ''}")

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        self.timers.append((seconds, event))

    def exit(self, status: int) -> None:
        self.did.append(f"exit {status}")

    def told(self, peer: str = "spark2") -> list[str]:
        """Return the messages to a peer: the kind of each, and that of a goodbye."""
        return [" ".join(filter(None, (next(iter(one)), one.get("kind")))) for to, one in self.sent if to == peer]


def head(peer: Count | None = HERE, **fields: Any) -> Recorder:
    """Return a head that runs with its worker."""
    one = Recorder(**fields)
    for partner in one.attempt.partners:
        one.attempt.met(partner, peer)
    one.attempt.listens()
    return one


def worker(peer: Count | None = HERE, **fields: Any) -> Recorder:
    """Return a worker that runs with its head."""
    one = Recorder(1, ("spark1",), **fields)
    one.attempt.met("spark1", peer)
    if peer is not None:
        one.attempt.received("spark1", {"begin": "5a"})
    one.attempt.received("spark1", {"start": 1})
    return one


def test_both_ranks_have_one_id_and_the_worker_runs_when_the_head_listens() -> None:
    one, other = Recorder(), Recorder(1, ("spark1",))
    one.attempt.met("spark2", HERE)
    other.attempt.met("spark1", HERE)
    assert (one.did[-2:], one.told(), one.record.runs) == (["run", "watch"], ["begin"], True)
    other.attempt.received("spark1", one.sent[0][1])
    assert other.record.id == one.record.id != ""
    assert "run" not in other.did
    one.attempt.listens()
    other.attempt.received("spark1", one.sent[1][1])
    one.attempt.serves()
    other.attempt.received("spark1", one.sent[2][1])
    assert (one.told(), other.did[-2:]) == (["begin", "start", "serving"], ["run", "spark1 serves"])
    assert [each.states[-1][0] for each in (one, other)] == ["serving", "serving"]
    for each in (one, other):
        each.timers[-1][1]()
        assert (each.record.count.era, each.record.start and each.record.start.good) == (1, True)


@pytest.mark.parametrize(
    ("answer", "status", "failed", "why"),
    [
        (("bye", "ended"), FAULT, 1, "its container ended with status 1"),
        (("bye", "stopped"), OVER, 0, "spark2 is lost: bye"),
        (("lost", ""), OVER, 0, "spark2 is lost: silent for 10 s"),
        (("", ""), OVER, 0, "spark2 is lost: it does not answer"),
    ],
)
def test_the_peer_decides_whose_fault_the_end_of_a_container_is(
    answer: tuple[str, str], status: int, failed: int, why: str
) -> None:
    one = head()
    one.attempt.container_ended("its container ended with status 1")
    assert (one.told()[-1], one.did[-1] == "remove") == ("bye ended", False)
    match answer:
        case ("bye", kind):
            one.attempt.received("spark2", {"bye": "bye", "kind": kind})
        case ("lost", _):
            one.attempt.lost("spark2", "silent for 10 s")
        case _:
            one.timers[-1][1]()
    assert (len(one.record.count.failures), one.record.count.outside) == (failed, 1 - failed)
    assert why in one.states[-1][1]
    one.attempt.removed()
    assert one.did[-1] == f"exit {status}"


@pytest.mark.parametrize("make", [head, worker])
def test_a_rank_whose_peer_ends_answers_and_ends(make: Callable[[], Recorder]) -> None:
    for kind, failed in (("ended", 1), ("stopped", 0)):
        one = make()
        peer = one.attempt.partners[0]
        one.attempt.received(peer, {"bye": "why", "kind": kind})
        assert (one.told(peer)[-1], one.did[-1]) == (f"bye {kind}", "remove")
        assert one.states[-1][0] == ("failed" if failed else "wanted")
        assert len(one.record.count.failures) == failed


def test_four_ranks_start_and_end_together() -> None:
    partners = ("spark2", "spark3", "spark4")
    one = Recorder(partners=partners)
    for peer in partners:
        assert "run" not in one.did
        one.attempt.met(peer, HERE)
    # Those that are here learn for which Spark it waits, and what each one counts.
    assert one.told("spark2")[:4] == ["waits", "count", "waits", "count"]
    one.attempt.listens()
    one.attempt.received("spark3", {"bye": "its container ended", "kind": "ended"})
    # Nobody hears of it before the others have shown that they are here.
    one.attempt.received("spark2", {"beat": 1})
    assert [one.told(peer)[-1] for peer in partners] == ["start"] * 3
    one.attempt.received("spark4", {"beat": 1})
    assert [one.told(peer)[-3:] for peer in partners] == [["begin", "start", "bye ended"]] * 3
    assert one.record.count.failures == (one.record.id,)
    assert one.states[-1] == ("failed", "spark3 is lost: its container ended")


def test_the_end_of_a_head_of_several_is_judged_by_their_beats() -> None:
    partners = ("spark2", "spark3", "spark4")
    one = head(partners=partners)
    one.attempt.container_ended("why")
    for peer in partners:
        assert one.did[-1] != "remove"
        one.attempt.received(peer, {"beat": 1})
    assert (one.did[-1], one.states[-1]) == ("remove", ("failed", "why"))
    assert {one.told(peer)[-1] for peer in partners} == {"bye ended"}


@pytest.mark.parametrize("gone", ["lost", "stopped", "silent"])
def test_a_rank_that_is_gone_is_the_reason_for_the_end_of_another_s_container(gone: str) -> None:
    partners = ("spark2", "spark3", "spark4")
    one = head(partners=partners)
    one.attempt.received("spark2", {"bye": "its container ended", "kind": "ended"})
    one.attempt.received("spark3", {"beat": 1})
    if gone == "lost":
        one.attempt.lost("spark4", "silent for 10 s")
    elif gone == "stopped":
        one.attempt.received("spark4", {"bye": "it was stopped", "kind": "stopped"})
    else:
        one.timers[-1][1]()
    assert one.states[-1][1].startswith("spark4 is lost: ")
    assert one.record.count.failures == ()
    assert one.told("spark2")[-1] == one.told("spark3")[-1] == "bye stopped"


def test_a_worker_of_several_takes_what_its_head_tells() -> None:
    one = Recorder(rank=2, partners=("spark1",))
    one.attempt.met("spark1", HERE)
    one.attempt.received("spark1", {"waits": "it waits for spark4"})
    assert one.states[-1] == ("wanted", "spark1 is here: it waits for spark4")
    count = {"era": 3, "failures": ["1"], "gave_up": "5 failed starts in a row"}
    one.attempt.received("spark1", {"count": count})
    assert one.states[-1] == ("gave up", "5 failed starts in a row")
    # A person has acted on one of the Sparks.
    one.attempt.received("spark1", {"count": {"era": 4}})
    assert one.did[-1] == "exit 0"


def test_a_lost_peer_before_the_start_is_waited_for() -> None:
    paused = Record(Count(outside=2), paused_from=1e9)
    one = Recorder(record=paused)
    one.attempt.met("spark2", HERE)
    assert one.states[-1] == ("wanted", "it starts in 10 s: a pause, because it has ended from outside 2 times")
    one.attempt.lost("spark2", "silent for 10 s")
    assert one.states[-1] == ("wanted", "it waits for spark2")
    one.timers[-1][1]()
    assert "run" not in one.did
    one.seconds = 20.0
    one.attempt.met("spark2", HERE)
    assert one.did[-2:] == ["run", "watch"]


def fifth(make: Callable[..., Recorder], **fields: Any) -> Recorder:
    """Return a rank whose start is the fifth, and fails."""
    one = make(record=Record(Count(failures=("1", "2", "3", "4"))), **fields)
    one.attempt.received(one.attempt.partners[0], {"bye": "why", "kind": "ended"})
    one.attempt.removed()
    return one


@pytest.mark.parametrize("make", [head, worker])
def test_the_fifth_failure_stays_and_is_told_to_every_peer_that_comes(make: Callable[..., Recorder]) -> None:
    one = fifth(make)
    peer = one.attempt.partners[0]
    why = f"5 failed starts in a row, the last ended because {peer} is lost: why"
    assert (one.states[-1], one.did[-2]) == (("gave up", why), "part")
    assert "exit 1" not in one.did
    one.attempt.met(peer, HERE)
    assert (one.states[-1], one.did.count("run")) == (("gave up", why), 1)
    # A person has acted there.
    one.attempt.met(peer, Count(era=1))
    assert one.did[-1] == f"exit {OVER}"


def test_what_two_ranks_know_together_may_be_too_much() -> None:
    one = Recorder(record=Record(Count(failures=("1", "2", "3"))))
    one.attempt.met("spark2", Count(failures=("3", "4", "5")))
    assert one.states[-1][0] == "gave up"
    assert len(one.record.count.failures) == MAX_STARTS
    one = Recorder(record=Record(Count(deaths={"1": 1e9})))
    one.attempt.met("spark2", Count(deaths={"2": 1e9 + 3000}))
    assert one.states[-1][1].startswith(
        "not started at boot, because a Spark of it went down without a shutdown 2 times"
    )


def test_a_worker_of_the_former_release_gets_only_what_it_knows() -> None:
    one = head(OLD)
    assert one.told() == ["start"]
    one = fifth(head, peer=OLD)
    assert one.told()[-1] == "bye gave_up"
    one.attempt.met("spark2", OLD)
    assert one.told()[-1] == "bye gave_up"


def test_a_head_of_the_former_release_gives_no_id() -> None:
    one = worker(OLD)
    assert (bool(one.record.id), one.did[-1]) == (True, "run")
    one.attempt.received("spark1", {"bye": "5 starts within 60 min", "kind": "gave_up"})
    one.attempt.removed()
    assert one.states[-1] == ("gave up", "5 starts within 60 min")
    one = Recorder(1, ("spark1",))
    one.attempt.gave_up("5 starts within 60 min")
    assert one.states[-1] == ("gave up", "5 starts within 60 min")


SLOW = "Exception: The current node timed out during startup"


def test_a_head_whose_ray_was_slow_starts_all_again_in_the_same_start() -> None:
    one, other = head(), worker()
    start = one.record.id
    one.attempt.container_ended("its container ended with status 1", SLOW, 31.0)
    assert one.did[-3:] == [f"the start of rank 0 failed: {SLOW}; second try", "run", "watch"]
    one.attempt.listens()
    other.attempt.received("spark1", one.sent[-1][1])
    assert other.did[-2:] == ["spark1 has begun again, and so does rank 1", "run"]
    assert (one.record.id, one.record.count) == (start, Count())


@pytest.mark.parametrize(("serves", "running_s"), [(True, 31.0), (False, DEADLINE_S)])
def test_ray_that_is_slow_beyond_the_deadline_or_later_has_failed(serves: bool, running_s: float) -> None:
    one = head()
    if serves:
        one.attempt.serves()
    one.attempt.container_ended("its container ended with status 1", SLOW, running_s)
    assert one.told()[-1] == "bye ended"


def test_a_stop_is_told_and_no_container_that_ends_in_it_is_a_fault() -> None:
    for one, removed in ((head(), "remove gently"), (worker(), "remove")):
        peer = one.attempt.partners[0]
        one.attempt.stopping()
        one.attempt.container_ended("its container ended with status 143")
        one.attempt.received(peer, {"bye": "its container ended", "kind": "ended"})
        one.attempt.stop("its Spark shuts down")
        assert one.sent[-1][1]["bye"] == f"it was stopped: its Spark shuts down (rank {one.attempt.rank})"
        assert (one.told(peer)[-1], one.did[-1]) == ("bye stopped", removed)
        one.attempt.removed()
        assert (one.did[-1], one.record.count) == (f"exit {STOPPED}", Count())


def test_docker_that_ends_is_no_fault() -> None:
    one = head()
    one.attempt.docker_ended("Docker ended on this Spark")
    assert (one.told()[-1], one.record.count.outside) == ("bye stopped", 1)


def test_a_peer_that_begins_again_was_lost() -> None:
    one = head()
    one.attempt.met("spark2", HERE)
    assert one.states[-1][1].startswith("spark2 is lost: it has begun again; ")
    assert starts.pause_s(one.record, one.now()) > 0
