"""The causes of lab/forecast/measured-rows.md: why rows that were held back miss, with what a corrected fact gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.forecast import measured_rows
from lab.forecast.measured_rows import Cause, Configuration, Errors
from lab.pages import markdown

HEAD = """\
### Why they miss

The figures above stay as they were predicted: neither the rows nor the constants were changed after it. Where a row
states something that is not so, the second table predicts the same rows with the fact corrected and the same constants.
"""


def parts() -> Iterator[str]:
    """Yield the section."""
    held = measured_rows.configurations(measured_rows.HELD_BACK)
    yield HEAD
    yield "".join(_line(cause) for cause in measured_rows.causes())
    cells = [_cells(cause, covered(cause, held)) for cause in measured_rows.causes() if cause.change]
    columns = ("rows of", "corrected", "rows", "mean", "corrected mean", "first token mean", "corrected mean")
    yield markdown.table(columns, cells) + "\n"


def covered(cause: Cause, entries: Sequence[Configuration]) -> list[Configuration]:
    """Return the configurations that a cause is about."""
    return [entry for entry in entries if cause.covers(entry)]


def _line(cause: Cause) -> str:
    names = ", ".join(name.split("/")[-1] for name in cause.models)
    about = f" ({names})" if names else ""
    return f"- {cause.family}{about}: {cause.what}. Source: {cause.evidence}.\n"


def _cells(cause: Cause, entries: Sequence[Configuration]) -> list[str]:
    before, after = errors(entries), errors(entries, cause.change)
    return [
        f"{cause.family}, {', '.join(name.split('/')[-1] for name in cause.models)}" if cause.models else cause.family,
        ", ".join(cause.change),
        str(len(before.speed)),
        *(_mean(found) for found in (before.speed, after.speed, before.first_token, after.first_token)),
    ]


def errors(entries: Sequence[Configuration], change: Mapping[str, Any] | None = None) -> Errors:
    """Return the errors of configurations, with the facts of `change` in place of their own."""
    found = Errors()
    for entry in entries:
        corrected = replace(entry, **(change or {}))
        for row in entry.rows:
            found.add(entry, row, corrected.served(row))
    return found


def _mean(values: Sequence[float]) -> str:
    return f"{sum(map(abs, values)) / len(values):.1%}" if values else "-"
