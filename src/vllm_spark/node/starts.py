"""The starts of an engine: one id for each, and the count of those that failed. The ranks of a deployment share both.

/var/lib/vllm-spark/starts/NAME.json has them, so that neither a boot nor a restart of Docker forgets one. The
supervisor of a rank and the unit of a server of one Spark write it; liveness, the state and with it the edge read it.

A start counts as failed if it ends by its own fault before it has served for GOOD_S. One that ends from outside (a peer
that leaves, a cut cable, a restart of Docker, a shutdown) does not count; a pause follows it, each longer than the one
before. A start that had not served for GOOD_S when its Spark went down without a shutdown is a death of that Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vllm_spark.node import deployment_state, host_layout, state_file
from vllm_spark.node.deployment_state import NOT_STARTED, Places, clean
from vllm_spark.node.unit_limits import (
    FIRST_PAUSE_S,
    GOOD_S,
    LONGEST_PAUSE_S,
    MAX_DEATHS,
    MAX_STARTS,
    TOO_MANY_FAILED,
    WITHIN_S,
)

ORDINALS = ("first", "second", "third", "fourth", "fifth")
# Longest id, and most failures and deaths that are read from a file or a peer.
ID_LENGTH = 32
MOST = 2 * MAX_STARTS
DIED = (
    f"{NOT_STARTED}, because {{spark}} went down without a shutdown {MAX_DEATHS} times within "
    f"{WITHIN_S // 60} min, each time before the model had served for {GOOD_S / 60:.0f} min"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on one Spark: its boot, the time of day, and the seconds since the boot, which never jump."""

    boot: str
    day: float
    up: float


@dataclass(frozen=True, slots=True)
class Start:
    """One start. `boot` and `up` are those of its beginning. `good`: it has served for GOOD_S."""

    id: str
    boot: str = ""
    up: float = 0.0
    good: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """What the ranks agree on. A good start and an act of a person begin a new `era`, which forgets what was before.

    `failures`: ids of failed starts. `deaths`: id of a start under which a Spark died -> time of day. `outside`: ends
    from outside. `gave_up`: why nothing starts before a person acts; empty if it may."""

    era: int = 0
    failures: tuple[str, ...] = ()
    deaths: Mapping[str, float] = field(default_factory=dict)
    outside: int = 0
    gave_up: str = ""

    def merged(self, other: Count) -> Count:
        """Return what two ranks know together, the same on both: all of the later era, and nothing of the other."""
        if self.era != other.era:
            return max(self, other, key=lambda count: count.era)
        failures = tuple(sorted({*self.failures, *other.failures}))
        reasons = sorted(filter(None, (self.gave_up, other.gave_up)))
        outside = max(self.outside, other.outside)
        both = Count(self.era, failures, {**self.deaths, **other.deaths}, outside, reasons[0] if reasons else "")
        return both.judged("", "a Spark of it")

    def judged(self, why: str, spark: str) -> Count:
        """Return the count, given up if it has reached a limit. `why` the last start ended may be empty, `spark` names
        the Spark that died."""
        last = max(self.deaths.values(), default=0.0)
        deaths = {start: day for start, day in self.deaths.items() if last - day < WITHIN_S}
        gave_up = self.gave_up
        if len(self.failures) >= MAX_STARTS:
            gave_up = gave_up or TOO_MANY_FAILED + (f", the last ended because {why}" if why else "")
        if len(deaths) >= MAX_DEATHS:
            gave_up = gave_up or DIED.format(spark=spark)
        return replace(self, deaths=deaths, gave_up=gave_up)

    def next_era(self) -> Count:
        return Count(self.era + 1)


@dataclass(frozen=True, slots=True)
class Record:
    """The starts of a deployment on one Spark. `boot` is that in which its unit began the last time, `again` that
    systemd begins it the next time by itself, `paused_from` the time of day of the last end from outside."""

    count: Count = Count()
    start: Start | None = None
    boot: str = ""
    again: bool = False
    paused_from: float = 0.0

    @property
    def id(self) -> str:
        """The id of the last start; empty if there was none, as of a start of release 0.1.0."""
        return self.start.id if self.start else ""

    @property
    def runs(self) -> bool:
        """True if nobody has written the end of the last start."""
        return self.start is not None and not self.start.ended


# Steps of a record. Pure.


def begun(record: Record, start_id: str, now: Moment) -> Record:
    return replace(record, start=Start(start_id, now.boot, now.up))


def good(record: Record) -> Record:
    """Return the record of a start that has served for GOOD_S: what came before it is forgotten."""
    if record.start is None or record.start.good:
        return record
    return replace(record, count=record.count.next_era(), start=replace(record.start, good=True))


def failed(record: Record, why: str) -> Record:
    """Return the record of a start that has ended by its own fault."""
    if record.start is None or record.start.good or not record.runs:
        return _ended(record)
    count = replace(record.count, failures=tuple(sorted({*record.count.failures, record.id})))
    return replace(_ended(record), count=count.judged(why, ""))


def left(record: Record, now: Moment) -> Record:
    """Return the record of a start that has ended from outside."""
    if not record.runs:
        return record
    count = replace(record.count, outside=record.count.outside + 1)
    return replace(_ended(record), count=count, paused_from=now.day)


def acted(record: Record) -> Record:
    """Return the record after a person has stopped or started the unit."""
    return replace(_ended(record), count=record.count.next_era(), again=False)


def _ended(record: Record) -> Record:
    return replace(record, start=record.start and replace(record.start, ended=True))


def with_count(record: Record, count: Count) -> Record:
    """Return the record with what a peer knows."""
    return replace(record, count=record.count.merged(count))


def gives_up(record: Record, why: str) -> Record:
    """Return the record of a deployment that another program has given up."""
    return replace(record, count=replace(record.count, gave_up=record.count.gave_up or why))


def unit_begins(record: Record, now: Moment, *, with_boot: bool, spark: str) -> Record:
    """Return the record when systemd begins the unit. `with_boot`: it does so at each boot. `spark` names this Spark in
    the reason of a death. A unit that gave up and begins neither with a boot nor by itself is begun by a person."""
    by_itself = record.again or (record.boot != now.boot and with_boot)
    if record.count.gave_up and not by_itself:
        record = acted(record)
    if record.start and record.runs:
        record = _died(record, now, spark) if record.start.boot != now.boot else failed(record, "its unit was killed")
    return replace(record, start=None, boot=now.boot, again=False)


def _died(record: Record, now: Moment, spark: str) -> Record:
    """Return the record of a start whose Spark went down without a shutdown."""
    if record.start and record.start.good:
        return replace(record, count=record.count.next_era())
    count = replace(record.count, deaths={**record.count.deaths, record.id: now.day})
    return replace(record, count=count.judged("", spark))


def pause_s(record: Record, now: Moment) -> float:
    """Return the seconds before the next start may begin: what is left of the pause after an end from outside."""
    if not record.count.outside:
        return 0.0
    pause: float = min(FIRST_PAUSE_S * 2 ** min(record.count.outside - 1, MOST), LONGEST_PAUSE_S)
    # A clock that has jumped makes no pause longer.
    return min(pause, max(0.0, record.paused_from + pause - now.day))


def paused(record: Record, pause: float) -> str:
    """Return why a deployment waits for this time."""
    return f"it starts in {pause:.0f} s: a pause, because it has ended from outside {record.count.outside} times"


def nth(number: int) -> str:
    """Return an ordinal number."""
    return ORDINALS[number - 1] if number <= len(ORDINALS) else f"{number}th"


def farewell(name: str, why: str) -> str:
    """Return the line of the journal about a deployment that gives up."""
    return (
        f"giving up: {why} — expected: a start that serves. Fix: find the cause in the lines above; "
        f"`sudo vllm-switch {name}` or a deploy starts it again. See docs/runbooks/gave-up.md"
    )


# Files


def new_id() -> str:
    return secrets.token_hex(ID_LENGTH // 2)


def moment(places: Places) -> Moment:
    """Return this moment. The name of a boot is a file that lasts as long: a container that is started again is a new
    boot, though its kernel is not."""
    path = os.path.join(places.run, host_layout.BOOT)
    os.makedirs(places.run, mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError), open(path, "x", encoding="ascii") as file:
        file.write(new_id())
    return Moment(deployment_state.text(path), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))


def read(name: str, places: Places) -> Record:
    """Return the record of a deployment. An absent or broken file is an empty one: it must not keep a server down."""
    return from_json(deployment_state.json_object(deployment_state.text(places.starts_of(name))))


def change(name: str, places: Places, step: Callable[[Record], Record]) -> Record:
    """Apply a step to the record of a deployment, on the disk when this returns. Returns the new record."""
    with state_file.alone(os.path.join(places.run, host_layout.STARTS_LOCK)):
        old = read(name, places)
        new = step(old)
        if new != old:
            content = json.dumps(asdict(new)) + "\n"
            state_file.replace_or_warn(
                places.starts_of(name), content, f"the starts of deployment {name} are not counted"
            )
    return new


def from_json(document: Mapping[str, Any]) -> Record:
    """Return the record in a document. What has another type is left out."""
    start, own = Start(**_fields(document.get("start"), Start(""))), _fields(document, Record())
    count = count_of(document.get("count"))
    return Record(count, start if start.id else None, own["boot"], own["again"], own["paused_from"])


def count_of(document: object) -> Count:
    """Return the count in a document, which may be a peer's. What has another type is left out."""
    found = _fields(document, Count())
    ids = {clean(one, ID_LENGTH) for one in found["failures"] if isinstance(one, str)}
    days = {clean(one, ID_LENGTH): deployment_state.number(day) for one, day in found["deaths"].items()}
    deaths = {one: day for one, day in list(days.items())[:MOST] if day is not None}
    era, outside = (int(deployment_state.number(found[key]) or 0) for key in ("era", "outside"))
    return Count(era, tuple(sorted(ids))[:MOST], deaths, outside, clean(found["gave_up"]))


def _fields(document: object, shape: Count | Start | Record) -> dict[str, Any]:
    """Return the fields of a shape in a document; that of the shape where the document has none of its type."""
    found = document if isinstance(document, dict) else {}
    kinds: dict[type, Any] = {tuple: list, float: int | float}
    return {
        key: found.get(key) if isinstance(found.get(key), kinds.get(type(value), type(value))) else value
        for key, value in asdict(shape).items()
    }
