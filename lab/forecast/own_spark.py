"""Errors of the forecast with the factors of an operator's own server: `python -m lab.forecast.own_spark`.

Every second row of a server gives its factors, the median of measured to forecast of the speed and of the first token,
and its other rows judge them. No row judges a factor that it gave. The unmet operators who are held back are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from lab.forecast import judge, measured_rows
from lab.forecast.judge import Judged
from lab.forecast.measured_rows import Configuration, Row
from vllm_spark.sizing import constants

SPARK = constants.constants_of({})
SPEED, FIRST = "speed", "first_token"

# Kind -> the rows that judge, without and with the factor of their server.
Figures = Mapping[str, tuple[Sequence[Judged], Sequence[Judged]]]


def main() -> None:
    for kind, (before, after) in figures().items():
        print(f"{kind}: {len(after)} rows of {len(judge.by_operator(after))} operators")
        for share in (0.5, constants.HOLDS):
            was, now = judge.quantile(before, share), judge.quantile(after, share)
            print(f"  {share:.0%} within {was:.1%}, with the factor of their server within {now:.1%}")


def figures() -> Figures:
    """Return the rows that judge a factor."""
    found: dict[str, tuple[list[Judged], list[Judged]]] = {SPEED: ([], []), FIRST: ([], [])}
    for (operator, _), members in by_server().items():
        given = list(ratios(members[0::2]))
        for kind, ratio in ratios(members[1::2]):
            if like := [other for one, other in given if one == kind]:
                before, after = found[kind]
                before.append(Judged(operator, kind, 1 / ratio, 0.0))
                after.append(Judged(operator, kind, median(like) / ratio, 0.0))
    return found


def by_server() -> Mapping[tuple[str, str], list[tuple[Configuration, Row]]]:
    """Return operator and server -> the rows."""
    found: dict[tuple[str, str], list[tuple[Configuration, Row]]] = {}
    for folder in (*measured_rows.FITTED, *measured_rows.NOT_FITTED, measured_rows.UNMET):
        for entry in measured_rows.configurations(folder):
            if folder != measured_rows.UNMET or not judge.held_back(entry.operator):
                found.setdefault((entry.operator, entry.key), []).extend((entry, row) for row in entry.rows)
    return found


def ratios(rows: Sequence[tuple[Configuration, Row]]) -> Iterator[tuple[str, float]]:
    """Yield measured to forecast: the decode of a stream or else the total, and the first token of a long prompt."""
    for entry, row in rows:
        for one in judge.of_row(entry, row, entry.served(row, SPARK)):
            yield FIRST if one.kind in (judge.FIRST, judge.DEPTH) else SPEED, 1 / one.ratio


if __name__ == "__main__":
    main()
