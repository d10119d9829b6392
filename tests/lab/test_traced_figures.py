"""Every reported speed of README's tables has the row of its source (tests/data/traced-figures.yml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.forecast import measured_rows
from lab.pages import second_spark, where_to_begin
from vllm_spark.core import strict_yaml
from vllm_spark.sizing.uses import USES

pytestmark = pytest.mark.slow
FILE = Path(__file__).parents[1] / "data" / "traced-figures.yml"
TRACES: list[dict[str, Any]] = strict_yaml.load_own(FILE.read_text(encoding="utf-8"))
PINNED = {document["name"]: document for document in where_to_begin.pinned()}
REPORTED = [trace for trace in TRACES if "recipe" in trace]
PAIRS = [trace for trace in TRACES if "pair" in trace]
# An excerpt is a row of figures, not a text.
MOST_WORDS = 25
# A trace has one load of an owner, and README the mean of his loads.
OF_ONE_LOAD = 0.1


def repository(source: str) -> str:
    """Return OWNER/NAME of a repository, or the host and path of a page."""
    page = source.removeprefix("https://")
    return page.removeprefix("github.com/").partition("@")[0].partition(",")[0].partition("/pull/")[0]


def compared(architecture: str, streams: int) -> dict[str, dict[int, float]]:
    """Return repository -> number of Sparks -> traced figure."""
    speeds: dict[str, dict[int, float]] = {}
    for trace in PAIRS:
        if (trace["pair"]["architecture"], trace["pair"]["streams"]) == (architecture, streams):
            speeds.setdefault(repository(trace["source"]), {})[trace["pair"]["sparks"]] = trace["figure"]
    return speeds


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: str(trace["figure"]))
def test_an_excerpt_is_short_and_has_the_figure(trace: dict[str, Any]) -> None:
    words = trace["excerpt"].split()
    assert str(trace["figure"]) in words
    assert len(words) <= MOST_WORDS


@pytest.mark.parametrize("trace", REPORTED, ids=lambda trace: str(trace["figure"]))
def test_a_reported_figure_is_expected_by_its_recipe_with_this_source(trace: dict[str, Any]) -> None:
    figures = [one for one in PINNED[trace["recipe"]]["expected"] if one["value"] == trace["figure"]]
    assert [repository(trace["source"]) in one["source"] for one in figures] == [True]


@pytest.mark.parametrize("trace", PAIRS, ids=lambda trace: str(trace["figure"]))
def test_a_figure_of_a_pair_is_a_measured_row_of_this_source(trace: dict[str, Any]) -> None:
    pair, source = trace["pair"], trace["source"].rpartition(":")[0] if "@" in trace["source"] else trace["source"]
    assert any(
        trace["figure"] in (row.decode, row.total, row.decode and row.decode * row.streams)
        for entry in measured_rows.configurations(*measured_rows.FITTED, *measured_rows.NOT_FITTED)
        if (entry.architecture, entry.tensor_parallel, entry.source) == (pair["architecture"], pair["sparks"], source)
        for row in entry.rows
        if row.streams == pair["streams"]
    )


@pytest.mark.parametrize("nodes", where_to_begin.SPARKS)
@pytest.mark.parametrize("use", USES, ids=lambda use: str(use.word))
def test_every_speed_of_the_first_table_is_traced(use: Any, nodes: int) -> None:
    found = where_to_begin.best(list(PINNED.values()), use, nodes)
    assert found
    figure, name = found
    assert (name, figure["value"]) in [(trace["recipe"], trace["figure"]) for trace in REPORTED]


@pytest.mark.parametrize(("name", "streams"), second_spark.compared_recipes(list(PINNED.values())))
def test_every_measured_gain_of_the_second_table_is_traced(name: str, streams: int) -> None:
    architecture = PINNED[name]["model"]["architecture"]
    gains = {who.partition(",")[0]: gain for who, gain in second_spark.measured(architecture, streams)}
    traced = compared(architecture, streams)
    by_operator = {source.partition("/")[0]: speeds[2] / speeds[1] for source, speeds in traced.items()}
    assert gains == pytest.approx(by_operator, abs=OF_ONE_LOAD)
