"""The section of lab/forecast/measured-rows.md with unseen and gathered rows of operators, by what they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from lab.forecast import measured_rows
from lab.forecast.measured_rows import Configuration, Row
from lab.pages import markdown

HEAD = """\
## Rows of operators that came to the fit

The rows of lab/forecast/measured/unseen were gathered while the constants of 2026-11-27 were fitted, by someone who ran
no forecast of them. They were judged once, when that fit had ended, and are in the fit since 2026-11-29. Those of
measured/unmet have their place.

The gathered rows are of 2026-11-27, split by operator: the sha256 of its name decides. The constants of that day, which
belonged to families of models, had met neither half; on the second they had a mean error of 12.3 % (one Spark), 27.0 %
(drafter), 15.1 % (several Sparks) and 21.7 % (first token). A first fit by kernel lost to them there
([by-kernel.md](by-kernel.md)). All of them are in the fit, so their figures show how well it describes them.
"""

NEAR, FIRST_NEAR, MANY, DEEP = 0.20, 0.25, 16, 30000

Measured = tuple[Configuration, Row]


def _alone(entry: Configuration) -> bool:
    return entry.tensor_parallel == 1


# Group -> whether it is about the first token, and the rows that belong to it.
GROUPS: Mapping[str, tuple[bool, Callable[[Configuration, Row], bool]]] = {
    "one Spark, no drafter": (False, lambda entry, _: _alone(entry) and not entry.drafter),
    "one Spark, drafter": (False, lambda entry, _: _alone(entry) and bool(entry.drafter)),
    "several Sparks": (False, lambda entry, _: not _alone(entry)),
    "16 and more streams": (False, lambda _, row: row.streams >= MANY),
    "from 30,000 tokens": (False, lambda _, row: row.prompt + row.depth >= DEEP),
    "first token": (True, lambda _, row: row.prompt + row.depth < DEEP),
    "first token from 30,000 tokens": (True, lambda _, row: row.prompt + row.depth >= DEEP),
}


def parts() -> Iterator[str]:
    """Yield the section."""
    yield HEAD
    columns = ("rows of", "which", "operators", "rows", "mean", "bias", "inside 20 %", "inside 25 %")
    yield markdown.table(columns, list(_cells())) + "\n"


def _cells() -> Iterator[list[str]]:
    folders = {"unseen": measured_rows.UNSEEN, **measured_rows.GATHERED_HALVES}
    halves = {half: list(_rows(folder)) for half, folder in folders.items()}
    for name, (first, belongs) in GROUPS.items():
        for half, rows in halves.items():
            some = [(entry, errors[first]) for entry, row, errors in rows if belongs(entry, row) and first in errors]
            if some:
                yield [name, half, str(len({entry.operator for entry, _ in some})), *_figures([e for _, e in some])]


def _rows(folder: Path) -> Iterator[tuple[Configuration, Row, dict[bool, float]]]:
    """Yield each row with its errors: of the speed under False, of the first token under True."""
    for entry in measured_rows.configurations(folder):
        for row in entry.rows:
            served, errors = entry.served(row), {}
            speed = measured_rows.speed_error(row, served)
            if speed is not None:
                errors[False] = speed
            first = measured_rows.first_token_error(entry, row, served)
            if first is not None:
                errors[True] = first
            yield entry, row, errors


def _figures(errors: Sequence[float]) -> list[str]:
    sizes = [abs(error) for error in errors]
    shares = [f"{sum(size <= limit for size in sizes) / len(sizes):.0%}" for limit in (NEAR, FIRST_NEAR)]
    return [str(len(sizes)), f"{sum(sizes) / len(sizes):.1%}", f"{sum(errors) / len(sizes):+.1%}", *shares]
