"""Errors of the forecast with the constants of an operator's own Spark: `python -m lab.forecast.own_spark`.

Every second row of a server gives its constants, and its other rows judge them: `same server`. For `other server` the
rows of one server judge the constants that the operator's other servers give. No row judges constants that it gave.
Constants that no Spark can have are refused, as the bench does. `inside` are the rows in the interval that the given
rows leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lab.forecast import measured_rows
from lab.forecast.measured_rows import Configuration, Row
from vllm_spark.sizing import constants, factors, site_constants
from vllm_spark.sizing.factors import Observation

# Operators with at least eight rows, apart from the one to whose machine the constants are fitted.
OPERATORS = ("getainode", "huggingface.co", "jschmied", "jvr0x", "kubis.ai", "luisefigueroa", "sostrowsk")
SPARK = constants.constants_of({})
FIRST, WITHIN = "first token", 0.9


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that was held back: its metric, its errors with the toolkit's constants and with the operator's.

    `inside`: whether it is in the operator's interval; None without one.
    """

    metric: str
    before: float
    after: float
    inside: bool | None


def main() -> None:
    columns = f"{'rows':>5}{'mean':>8}{'after':>8}{'90 % in':>9}{'after':>8}{'inside':>10}"
    print(f"{'operator':<16}{'judged':<14}{'figures':<13}{columns}")
    together: dict[str, list[Judged]] = {}
    for operator in OPERATORS:
        for kind, found in (("same server", same_server(operator)), ("other server", other_server(operator))):
            rows = list(found)
            together.setdefault(kind, []).extend(rows)
            print_lines(operator, kind, rows)
    for kind, rows in together.items():
        print_lines("all", kind, rows)


def print_lines(operator: str, kind: str, rows: Sequence[Judged]) -> None:
    """Print a line for the speeds, and one for the first tokens."""
    speeds, firsts = ([row for row in rows if (row.metric == FIRST) == first] for first in (False, True))
    for name, some in (("speed", speeds), (FIRST, firsts)):
        if some:
            before, after = [abs(row.before) for row in some], [abs(row.after) for row in some]
            figures = f"{_mean(before):>8.1%}{_mean(after):>8.1%}{_within(before):>9.0%}{_within(after):>8.0%}"
            known = [row.inside for row in some if row.inside is not None]
            inside = f"{sum(known)} of {len(known)}"
            print(f"{operator:<16}{kind:<14}{name:<13}{len(some):>5}{figures}{inside:>10}", flush=True)


def same_server(operator: str) -> Iterator[Judged]:
    """Yield every second row of each configuration, judged by the others."""
    for members in by_server(operator).values():
        given, held = members[0::2], members[1::2]
        if held:
            yield from judged(held, given)


def other_server(operator: str) -> Iterator[Judged]:
    """Yield the rows of each configuration, judged by those of the others on as many Sparks."""
    servers = by_server(operator)
    for key, held in servers.items():
        ranks = held[0][0].tensor_parallel
        given = [
            row for other, rows in servers.items() if other != key for row in rows if row[0].tensor_parallel == ranks
        ]
        if given:
            yield from judged(held, given)


def judged(held: Sequence[tuple[Configuration, Row]], given: Sequence[tuple[Configuration, Row]]) -> Iterator[Judged]:
    """Yield the errors of rows with the constants that other rows gave."""
    seen = list(observations(given))
    found = factors.measured(SPARK, seen)
    if any(site_constants.impossible(factor.kind.leading, factor.constant) for factor in found):
        found = []
    own = factors.applied(SPARK, {factor.kind.leading: factor.value for factor in found})
    for one in observations(held):
        like = [other for other in seen if (other.metric == FIRST) == (one.metric == FIRST)]
        width = factors.width(own, like, len(found)) if found else None
        error = one.predicted(own) / one.measured - 1
        inside = abs(error) <= width if width else None
        yield Judged(one.metric, one.predicted(SPARK) / one.measured - 1, error, inside)


def by_server(operator: str) -> dict[str, list[tuple[Configuration, Row]]]:
    """Return the rows of an operator by configuration."""
    found: dict[str, list[tuple[Configuration, Row]]] = {}
    folders = (measured_rows.FOLDER, measured_rows.HELD_BACK, measured_rows.LATER)
    for entry in measured_rows.configurations(*folders):
        if operator in entry.source.split("/"):
            found.setdefault(entry.key, []).extend((entry, row) for row in entry.rows)
    return found


def observations(rows: Sequence[tuple[Configuration, Row]]) -> Iterator[Observation]:
    """Yield what each row measured: the decode of a stream or else the total, and the first token of a long prompt."""
    for entry, row in rows:
        if row.decode:
            yield Observation("decode", row.decode, _predicted(entry, row, "decode"))
        elif row.total:
            yield Observation("total", row.total, _predicted(entry, row, "total"))
        if row.first_token_ms and measured_rows.judges_first_token(entry, row):
            seconds = row.first_token_ms / 1e3
            yield Observation(FIRST, seconds, _predicted(entry, row, "first_token_s"))


def _predicted(entry: Configuration, row: Row, name: str) -> Callable[[constants.Constants], float]:
    return lambda known: float(getattr(entry.served(row, known), name))


def _mean(errors: Sequence[float]) -> float:
    return sum(errors) / len(errors)


def _within(errors: Sequence[float]) -> float:
    """Return the error that 90 % of the rows do not exceed."""
    return sorted(errors)[max(0, round(WITHIN * len(errors)) - 1)]


if __name__ == "__main__":
    main()
