"""The width of tables: of the terminal, or of a pipe."""

from __future__ import annotations

import pytest
from rich.table import Table

from vllm_spark.core import table

LONG = "a-name-that-somebody-types-whole"


def grid() -> Table:
    made = Table("name", "one", "another", box=None, pad_edge=False)
    made.add_row(LONG, "x" * 40, "many words " * 6 + "[not markup]")
    return made


@pytest.mark.parametrize("columns", [60, 80, 120, 300])
def test_a_table_is_no_wider_than_the_terminal_and_loses_nothing(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = table.text(grid(), 20)
    assert max(map(len, text.splitlines())) <= columns
    assert LONG in text
    shown = "".join(text.split())
    assert (shown.count("x"), "[not" in shown) == (40, True)
    assert table.fits(grid(), 20) == (columns == 300)


def test_without_a_terminal_the_caller_says_how_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert [max(map(len, table.text(grid(), piped).splitlines())) <= piped for piped in (80, 140)] == [True, True]
    assert table.fits(grid(), 200)
