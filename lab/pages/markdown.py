"""Markdown of the generated pages."""

from __future__ import annotations

from collections.abc import Iterable


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table without a line break at its end."""
    titles = list(columns)
    return "\n".join([row(titles), "|" + "---|" * len(titles), *map(row, rows)])


def row(cells: Iterable[str]) -> str:
    """Return one row. A bar inside a cell is escaped."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
