"""Half widths of the forecast's intervals, from all public rows: `python -m lab.forecast.intervals`.

Prints for each kind of load how many rows there are, the width in whole percent that holds 90 % of them, and the width
that sizing/hardware.yml has for it. With a drafter each row is forecast at the acceptance that was measured with it.
Constants that change move the widths: write the new ones into `held_out` of the hardware.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from lab.forecast import measured_rows
from lab.forecast.measured_rows import Configuration, Row
from vllm_spark.sizing import constants

WITHIN = 0.9
# Operators with the same configuration differ by so much.
LEAST = 0.08
FOLDERS = (
    measured_rows.FOLDER,
    measured_rows.HELD_BACK,
    measured_rows.LATER,
    *measured_rows.GATHERED_HALVES.values(),
)

# Key of `held_out` -> whether a row is of its kind.
KINDS: Mapping[str, Callable[[Configuration, Row], bool]] = {
    "several": lambda entry, _: entry.tensor_parallel > 1 and not entry.drafted,
    "drafter": lambda entry, row: entry.tensor_parallel == 1 and bool(entry.drafted) and row.streams == 1,
    "drafter_streams": lambda entry, row: entry.tensor_parallel == 1 and bool(entry.drafted) and row.streams > 1,
}


def main() -> None:
    print(f"{'kind':<18}{'rows':>6}{'90 % in':>9}{'hardware.yml':>14}")
    for kind in KINDS:
        stated = constants.spark()["held_out"][kind]  # type: ignore[literal-required]  # the keys of KINDS
        print(f"{kind:<18}{len(errors(kind)):>6}{width(errors(kind)):>9.0%}{stated:>14.0%}")


@cache
def errors(kind: str, family: str = "") -> Sequence[float]:
    """Return the errors of the rows of a kind without their sign, of one family or of all."""
    return [abs(error) for entry, row, error in _judged() if KINDS[kind](entry, row) and family in {"", entry.family}]


@cache
def _judged() -> Sequence[tuple[Configuration, Row, float]]:
    return list(_rows())


def _rows() -> Iterator[tuple[Configuration, Row, float]]:
    for folder in FOLDERS:
        for entry in measured_rows.configurations(folder):
            for row in entry.rows if entry.drafted or entry.tensor_parallel > 1 else ():
                error = measured_rows.speed_error(row, entry.served(row))
                if error is not None:
                    yield entry, row, error


def width(sizes: Sequence[float]) -> float:
    """Return half the width of the interval, in whole percent, that holds WITHIN of the errors; at least LEAST."""
    return max(LEAST, math.ceil(100 * within(sizes)) / 100)


def within(sizes: Sequence[float]) -> float:
    """Return the least of the errors that WITHIN of them do not exceed."""
    return sorted(sizes)[math.ceil(WITHIN * len(sizes)) - 1]


if __name__ == "__main__":
    main()
