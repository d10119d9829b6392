"""Errors of the forecast with the factors of an operator's own server: `python -m lab.forecast.own_spark`.

Every second row of a server gives its factors, the median of measured to forecast of the speed and of the first token,
and its other rows judge them. No row judges a factor that it gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from lab.forecast import measured_rows
from lab.forecast.measured_rows import Configuration, Row
from vllm_spark.sizing import constants

# Operators with at least eight rows, apart from the one to whose machine the constants are fitted.
OPERATORS = ("getainode", "huggingface.co", "jschmied", "jvr0x", "kubis.ai", "luisefigueroa", "sostrowsk")
SPARK = constants.constants_of({})
FIRST, WITHIN = "first token", 0.9


@dataclass(frozen=True, slots=True)
class Judged:
    """A row that was held back: its metric, and its errors with the toolkit's forecast and with the factor."""

    metric: str
    before: float
    after: float


def main() -> None:
    columns = f"{'rows':>5}{'mean':>8}{'after':>8}{'90 % in':>9}{'after':>8}"
    print(f"{'operator':<16}{'figures':<13}{columns}")
    together: list[Judged] = []
    for operator in OPERATORS:
        rows = list(same_server(operator))
        together += rows
        print_lines(operator, rows)
    print_lines("all", together)


def print_lines(operator: str, rows: Sequence[Judged]) -> None:
    """Print a line for the speeds, and one for the first tokens."""
    for name, first in (("speed", False), (FIRST, True)):
        if some := [row for row in rows if (row.metric == FIRST) == first]:
            before, after = [abs(row.before) for row in some], [abs(row.after) for row in some]
            figures = f"{mean(before):>8.1%}{mean(after):>8.1%}{_within(before):>9.0%}{_within(after):>8.0%}"
            print(f"{operator:<16}{name:<13}{len(some):>5}{figures}", flush=True)


def same_server(operator: str) -> Iterator[Judged]:
    """Yield every second row of each configuration, judged by the others."""
    for members in by_server(operator).values():
        given, held = list(ratios(members[0::2])), members[1::2]
        for metric, ratio in ratios(held):
            like = [other for kind, other in given if (kind == FIRST) == (metric == FIRST)]
            yield Judged(metric, 1 / ratio - 1, (median(like) if like else 1.0) / ratio - 1)


def by_server(operator: str) -> dict[str, list[tuple[Configuration, Row]]]:
    """Return the rows of an operator by configuration."""
    found: dict[str, list[tuple[Configuration, Row]]] = {}
    folders = (measured_rows.FOLDER, measured_rows.HELD_BACK, measured_rows.LATER)
    for entry in measured_rows.configurations(*folders):
        if operator in entry.source.split("/"):
            found.setdefault(entry.key, []).extend((entry, row) for row in entry.rows)
    return found


def ratios(rows: Sequence[tuple[Configuration, Row]]) -> Iterator[tuple[str, float]]:
    """Yield measured to forecast: the decode of a stream or else the total, and the first token of a long prompt."""
    for entry, row in rows:
        served = entry.served(row, SPARK)
        if row.decode:
            yield "decode", row.decode / served.decode
        elif row.total:
            yield "total", row.total / served.total
        if row.first_token_ms and measured_rows.judges_first_token(entry, row):
            yield FIRST, row.first_token_ms / 1e3 / served.first_token_s


def _within(errors: Sequence[float]) -> float:
    """Return the error that 90 % of the rows do not exceed."""
    return sorted(errors)[max(0, round(WITHIN * len(errors)) - 1)]


if __name__ == "__main__":
    main()
