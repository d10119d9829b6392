"""What the generated pages are written in."""

from __future__ import annotations

from collections.abc import Iterable


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, without a line break at its end."""
    named = list(heads)
    return "\n".join([row(named), "|" + "---|" * len(named), *map(row, rows)])


def row(cells: Iterable[str]) -> str:
    """One row; a bar inside a cell does not end it."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
