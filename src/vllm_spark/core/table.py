"""Tables that are no wider than the terminal."""

from __future__ import annotations

import shutil
from io import StringIO
from typing import IO

from rich.console import Console
from rich.table import Table

NATURAL, PIPED = 10_000, 140


def width(piped: int) -> int:
    """Return the characters of a line: those of the terminal ($COLUMNS, else stdout), and `piped` without one."""
    return shutil.get_terminal_size((piped, 0)).columns


def fits(grid: Table, piped: int) -> bool:
    """Return whether a table has room without a cell that wraps."""
    return Console(width=NATURAL).measure(grid).maximum <= width(piped)


def show(grid: Table, piped: int = PIPED, file: IO[str] | None = None) -> None:
    """Print a table, by default to stdout. The first column stays whole, because it is what a person types; what has no
    room in the others goes on in the next line."""
    for column in grid.columns:
        column.overflow = "fold"
    grid.columns[0].no_wrap = True
    Console(file=file, width=width(piped)).print(grid, markup=False)


def text(grid: Table, piped: int) -> str:
    """Return a table as text."""
    file = StringIO()
    show(grid, piped, file)
    return file.getvalue().rstrip()
