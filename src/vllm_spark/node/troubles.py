"""What the owner of a Spark is told: each trouble once, and its end. Pure: what is seen and what was told in, messages
out. notify.py reads both and sends the messages. Standard library alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm_spark.node.deployment_state import (
    FAILED,
    GAVE_UP,
    LEASE_OVER,
    LENT,
    LOADING,
    NOT_STARTED,
    SERVING,
    STOPPED,
    WANTED,
    State,
    described,
)
from vllm_spark.node.unit_limits import READY_S

# A restart of the edge takes a few seconds. Looks are a minute apart.
EDGE_S = 90.0
# A program that has borrowed memory may end a little late.
LEASE_S = 300.0
# A boot takes two minutes.
SILENT_S = 180.0
# Any deploy within the certificate's last 90 days renews it (edge/authority.py). So many days are left for one.
CERTIFICATE_S = 30 * 86400.0

# How the key of an alert of Alertmanager begins.
ALERT = "alert "

# Event -> its grade, and what to type. A trouble of a higher grade is told although a lower one was told.
FIXES: dict[str, tuple[int, str]] = {
    "hung": (1, "nothing, it starts again. If it hangs again: `vllm-spark collect -l {host}`."),
    "rank-lost": (2, "look at the power and the cable of {peers}; `vllm-spark status` shows both."),
    "not-started": (2, "`vllm-spark status` says why; `vllm-spark deploy` starts it."),
    "down": (2, "`vllm-spark status` says why; `vllm-spark collect -l {host}` has the cause."),
    "gave-up": (3, "`vllm-spark collect -l {host}` has the cause; `vllm-spark deploy` starts it again."),
    "lease-held": (1, "end that program, or `vllm-spark lend {host}` with more --hours."),
    "edge-down": (1, "`vllm-spark collect -l {host}` has the cause; `vllm-spark deploy` starts it."),
    "certificate": (1, "`vllm-spark deploy` renews it; replace a certificate of your own first."),
    "silent": (2, "look at its power, its lamp and its network; see docs/runbooks/spark-died.md."),
    "alert": (1, ""),
}


class Message(NamedTuple):
    """What is sent. `event`: a key of FIXES, or `test`. `since`: its begin in epoch seconds. `deployment`: empty for a
    trouble of the whole Spark. `fix`: what to type, empty for nothing. `resolved`: the trouble has ended."""

    event: str
    what: str
    why: str
    since: float
    deployment: str = ""
    host: str = ""
    fix: str = ""
    resolved: bool = False

    @property
    def text(self) -> str:
        """Everything but `what`, as a person reads it."""
        at = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(self.since))
        return f"Since {at}." + (f" Why: {self.why}." if self.why else "") + (f" Fix: {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment here. `rank`: of this Spark. `deadline_s`: of a start. `hangs`: times and reasons since the last
    look."""

    name: str
    state: State
    rank: int = 0
    deadline_s: float = READY_S
    hangs: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen now, with times in epoch seconds. `booted`: this Spark was. `held`: somebody changes it.
    `edge_fault`: what is wrong with the edge, empty for one that runs, None without one. `certificate_end`: of the
    edge, None without one. `others`: Sparks of the site -> whether they answer, None if it is not this one that tells
    it. `alerts`: of Alertmanager, None if it was not read."""

    host: str
    now: float
    booted: float = 0.0
    held: bool = False
    deployments: Sequence[Deployment] = ()
    edge_fault: str | None = None
    certificate_end: float | None = None
    others: Mapping[str, bool | None] = field(default_factory=dict)
    alerts: Mapping[str, Message] | None = None


@dataclass(slots=True)
class Memory:
    """What one look leaves for the next. `looked`: when it was. `bad_since`: subject -> since when it is not well.
    `told`: subject -> event and begin of what was told and has not ended. `answered`: other Sparks that ever did; one
    that never did is not known to be silent."""

    looked: float = 0.0
    bad_since: dict[str, float] = field(default_factory=dict)
    told: dict[str, tuple[str, float]] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)


class Subject(NamedTuple):
    """What may be in trouble. `key`: the unit of a deployment, or an event of the whole Spark. `well`: None for one
    that nobody wants. `end`: what is told when a trouble has ended. `alert`: what Alertmanager says of it."""

    key: str
    well: bool | None
    end: str
    of: Deployment | None = None
    alert: Message | None = None


def judge(look: Look, memory: Memory) -> Iterator[Message]:
    """Yield what the owner is told now, and change the memory to what was told. While somebody changes this Spark
    nothing is told, and the time of a trouble does not count. Nor does the time without power."""
    memory.answered = sorted({*memory.answered, *(host for host, answers in look.others.items() if answers)})
    subjects, before = [*_subjects(look, memory)], memory.bad_since
    if look.held or memory.looked < look.booted:
        before = {}
    memory.looked = look.now
    memory.bad_since = {one.key: before.get(one.key, look.now) for one in subjects if one.well is False}
    if look.held:
        return
    for one in subjects:
        for trouble in _troubles(one, look, memory.bad_since.get(one.key, look.now)):
            grade, fix = FIXES[trouble.event]
            event, since = memory.told.get(one.key, ("", 0.0))
            # A person has started what gave up, and it gave up again.
            again = trouble.event == event == "gave-up" and trouble.since != since
            if not event or grade > FIXES.get(event, (0,))[0] or again:
                memory.told[one.key] = (trouble.event, trouble.since)
                peers = " and ".join(one.of.state["peers"]) if one.of else ""
                yield trouble._replace(host=look.host, fix=trouble.fix or fix.format(host=look.host, peers=peers))
        if one.well and one.key in memory.told:
            event, since = memory.told.pop(one.key)
            yield Message(event, one.end, "", since, one.of.name if one.of else "", look.host, resolved=True)
    # What is no longer on this Spark has ended without a word.
    memory.told = {one.key: memory.told[one.key] for one in subjects if one.key in memory.told}


def _subjects(look: Look, memory: Memory) -> Iterator[Subject]:
    for one in look.deployments:
        state, end = one.state["state"], f"{one.name} on {look.host} serves again"
        yield Subject(f"vllm@{one.name}", None if state in (STOPPED, LENT) else state == SERVING, end, one)
        held = state == LENT and one.state["why"].startswith(LEASE_OVER)
        yield Subject(f"lease@{one.name}", not held, f"the memory of {one.name} on {look.host} is free again", one)
    if look.edge_fault is not None:
        yield Subject("edge-down", not look.edge_fault, f"the edge of {look.host} runs again")
    if look.certificate_end is not None:
        lasts = look.certificate_end - look.now > CERTIFICATE_S
        yield Subject("certificate", lasts, f"the certificate of the edge of {look.host} is renewed")

    for host, answers in look.others.items():
        well = answers if host in memory.answered else None
        yield Subject(f"silent@{host}", well, f"{host} answers {look.host} again")
    told = {key for key in memory.told if key.startswith(ALERT)}
    for key in sorted({*(look.alerts or {}), *told}):
        alert = (look.alerts or {}).get(key)
        well = None if look.alerts is None else alert is None
        yield Subject(key, well, f"the alert {key.removeprefix(ALERT)} is over", alert=alert)


def _troubles(one: Subject, look: Look, bad_since: float) -> Iterator[Message]:
    """Yield what is wrong with a subject that is not well since then."""
    if one.alert:
        yield one.alert
    elif one.key.startswith("silent@") and one.well is False and look.now - bad_since >= SILENT_S:
        what = f"{one.key.partition('@')[2]} does not answer {look.host}"
        yield Message("silent", what, "it has no power, it is frozen, or its network is down", bad_since)
    elif one.of and one.key.startswith("lease@"):
        if one.well is False and look.now - bad_since >= LEASE_S:
            what = f"{one.of.name} on {look.host} does not come back"
            yield Message("lease-held", what, one.of.state["why"], bad_since, one.of.name)
    elif one.of:
        yield from _of_deployment(one.of, look, bad_since)
    elif one.key == "edge-down" and look.edge_fault and look.now - bad_since >= EDGE_S:
        yield Message(one.key, f"the edge of {look.host} is down", look.edge_fault, bad_since)
    elif one.key == "certificate" and look.certificate_end is not None and not one.well:
        ends = "ends" if look.certificate_end > look.now else "ended"
        day = time.strftime("%Y-%m-%d", time.gmtime(look.certificate_end))
        what = f"the certificate of the edge of {look.host} {ends} on {day}"
        yield Message(one.key, what, "clients refuse the edge after its end", bad_since)


def _of_deployment(one: Deployment, look: Look, bad_since: float) -> Iterator[Message]:
    """Yield the troubles of a deployment. A worker tells only that it is alone: its head tells the rest."""
    state, now, where = one.state, one.state["state"], f"{one.name} on {look.host}"
    alone = now == WANTED and bool(state["peers"])
    if one.rank and not alone:
        return
    for at, why in one.hangs:
        yield Message("hung", f"{where} hung and is started again", why, at, one.name)
    if now == GAVE_UP:
        event, what = "gave-up", f"{where} gave up"
        if state["why"].startswith(NOT_STARTED):
            event, what = "not-started", f"{where} is not started"
        yield Message(event, what, state["why"], state["since"], one.name)
    begun, limit_s = bad_since, 2 * one.deadline_s  # a start may have followed a wait
    if now == WANTED:
        begun, limit_s = max(bad_since, state["since"]), one.deadline_s
    if now in (WANTED, LOADING, FAILED) and look.now - begun > limit_s:
        event = "rank-lost" if alone else "down" if state["written"] else "not-started"
        what = f"{where} waits for {' and '.join(state['peers'])}" if alone else f"{where} does not serve"
        yield Message(event, what, described(state), begun, one.name)
