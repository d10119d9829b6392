"""Errors and intervals of the forecast by kind, each operator counted once: `python -m lab.forecast.judge`.

A row of an operator with n rows of a kind counts 1/n, so nobody's machine decides. Prints for each kind the median of
the errors, the width that holds 90 % and the share that the printed interval holds: of operators that the fit has met,
of those that it has not, and of a third of these, chosen by the sha256 of their names, which no width was fitted to.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.forecast import measured_rows
from lab.forecast.measured_rows import Configuration, Row
from vllm_spark.sizing import constants
from vllm_spark.sizing.burst import Served
from vllm_spark.sizing.constants import Constants

ONE, MANY, DRAFTER, SEVERAL = "one Spark", "16 and more streams", "drafter", "several Sparks"
FIRST, DEPTH = "first token", "first token from 8,000 tokens"
KINDS = (ONE, MANY, DRAFTER, SEVERAL, FIRST, DEPTH)

# The least speeds that an owner might ask for, as shares of what he would get.
FLOORS = (0.7, 0.8, 0.9, 1.1, 1.2, 1.3)


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure of a row: whose, of which kind, predicted / measured, and half the width of the printed interval."""

    operator: str
    kind: str
    ratio: float
    spread: float

    @property
    def deviation(self) -> float:
        """How far the measured value is from the forecast, as a share of the forecast, as `plan` prints intervals."""
        return abs(1 / self.ratio - 1)


def held_back(operator: str) -> bool:
    """Return whether an operator whom no fit has met waits for the last judgement: a third, by the name's sha256."""
    return int(hashlib.sha256(operator.encode()).hexdigest(), 16) % 3 == 0


def judged(folders: Iterable[Path], values: Constants | None = None) -> Iterator[Judged]:
    """Yield the figures of the rows of some folders."""
    for entry in measured_rows.configurations(*folders):
        for row in entry.rows:
            yield from of_row(entry, row, entry.served(row, values))


def of_row(entry: Configuration, row: Row, served: Served) -> Iterator[Judged]:
    """Yield the figures of one row: its speed, and its first token if that is judged."""
    speed, first = measured_rows.speed_error(row, served), measured_rows.first_token_error(entry, row, served)
    # The speed of a drafter whose acceptance is not stated says nothing.
    if speed is not None and bool(entry.drafted) == bool(entry.accepted):
        kind = of_speed(entry.tensor_parallel, row.streams, entry.drafted)
        yield Judged(entry.operator, kind, 1 + speed, printed(kind))
    if first is not None:
        kind = of_first_token(row)
        yield Judged(entry.operator, kind, 1 + first, printed(kind))


def of_speed(ranks: int, streams: int, drafted: int) -> str:
    """Return the kind of a speed."""
    if ranks > 1:
        return SEVERAL
    return MANY if streams >= constants.MANY_STREAMS else DRAFTER if drafted else ONE


def of_first_token(row: Row) -> str:
    """Return the kind of a first token."""
    return DEPTH if row.prompt + row.depth >= constants.DEEP else FIRST


def printed(kind: str) -> float:
    """Return half the width of the interval that `plan` prints."""
    if kind in (FIRST, DEPTH):
        return constants.first_token_interval(constants.DEEP if kind == DEPTH else 0).spread
    streams = constants.MANY_STREAMS if kind == MANY else 1
    return constants.speed_interval(several=kind == SEVERAL, drafter=kind == DRAFTER, streams=streams).spread


def by_operator(figures: Iterable[Judged]) -> dict[str, list[Judged]]:
    """Return operator -> his figures."""
    found = defaultdict(list)
    for one in figures:
        found[one.operator].append(one)
    return dict(found)


def quantile(figures: Iterable[Judged], share: float) -> float:
    """Return the deviation that a share of the figures does not exceed, each operator counted once."""
    members = by_operator(figures)
    weighted = sorted((one.deviation, 1 / len(some)) for some in members.values() for one in some)
    sought, total = share * len(members) - 1e-9, 0.0
    for deviation, weight in weighted:
        total += weight
        if total >= sought:
            return deviation
    return math.nan


def coverage(figures: Iterable[Judged], spread: float | None = None) -> float:
    """Return the share of the figures inside their interval, or inside a given one, each operator counted once."""
    members = by_operator(figures)
    inside = (
        sum(one.deviation <= (one.spread if spread is None else spread) for one in some) / len(some)
        for some in members.values()
    )
    return sum(inside) / len(members)


def left_out(figures: Sequence[Judged]) -> float:
    """Return the coverage of each operator by the width of the others."""
    members = by_operator(figures)
    shares = []
    for operator, own in members.items():
        others = quantile([one for one in figures if one.operator != operator], constants.HOLDS)
        shares.append(sum(one.deviation <= others for one in own) / len(own))
    return sum(shares) / len(shares)


def wrong_words(figures: Iterable[Judged]) -> tuple[float, float]:
    """Return the shares of wrong "go" and of wrong "no-go" of `plan --min-speed` at FLOORS, each operator counted
    once: the forecast reaches a floor that the server does not, and the other way round."""
    members = by_operator(figures)

    def share(some: Sequence[Judged], *, go: bool) -> float:
        wrong = sum((floor > 1) == go and (one.ratio >= floor) == go for one in some for floor in FLOORS)
        return wrong / len(some) / len(FLOORS)

    go, no_go = (sum(share(some, go=word) for some in members.values()) / len(members) for word in (True, False))
    return go, no_go


def groups(values: Constants | None = None) -> Mapping[str, list[Judged]]:
    """Return the sets that are judged apart."""
    unmet = list(judged([measured_rows.UNMET], values))
    return {
        "met": list(judged([*measured_rows.FITTED, *measured_rows.NOT_FITTED], values)),
        "unmet": [one for one in unmet if not held_back(one.operator)],
        "unmet, held back": [one for one in unmet if held_back(one.operator)],
        "all unmet": unmet,
        "doubtful": list(judged([measured_rows.DOUBTFUL], values)),
        "without acceptance": list(judged([measured_rows.WITHOUT_ACCEPTANCE], values)),
    }


def lines(groups: Mapping[str, Sequence[Judged]]) -> Iterator[str]:
    """Yield a line for each kind of each set, and one for --min-speed."""
    columns = f"{'rows':>6}{'operators':>11}{'median':>8}{'bias':>8}{'90 %':>7}{'printed':>9}{'holds':>7}{'others':>10}"
    for name, figures in groups.items():
        yield f"\n{name:<32}{columns}"
        for kind in KINDS:
            if some := [one for one in figures if one.kind == kind]:
                bias = sum(sum(o.ratio for o in own) / len(own) for own in by_operator(some).values())
                members = len(by_operator(some))
                middle, wide = (quantile(some, share) for share in (0.5, constants.HOLDS))
                yield (
                    f"{kind:<32}{len(some):>6}{members:>11}{middle:>8.1%}{bias / members - 1:>+8.1%}{wide:>7.0%}"
                    f"{max(one.spread for one in some):>9.0%}{coverage(some):>7.0%}{left_out(some):>10.0%}"
                )
        if speeds := [one for one in figures if one.kind not in (FIRST, DEPTH)]:
            go, no_go = wrong_words(speeds)
            yield f"--min-speed at {len(FLOORS)} floors: wrong go {go:.1%}, wrong no-go {no_go:.1%}"


def main() -> None:
    for line in lines(groups()):
        print(line)


if __name__ == "__main__":
    main()
