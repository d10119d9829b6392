"""Judge a run against a run before it, the forecast of its recipe, and the figures of the field reports."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from vllm_spark.bench import causes, comparison
from vllm_spark.bench.comparison import Row
from vllm_spark.bench.evidence import Run
from vllm_spark.bench.profiles import ReportedFigure
from vllm_spark.core.types import Document
from vllm_spark.node.bench.records import CellRecord
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest

# The same configuration differs by 8 % between operators (perf figures of one thread: 6.5 and 6.9 tok/s; others 35 to
# 40.85), so a reported figure is missed only below this.
BETWEEN_OPERATORS = 0.08

State = Literal["good", "worse", "better", "unknown"]


@dataclass(frozen=True, slots=True)
class Statement:
    """One judgement: against what, its state, and a sentence with both values."""

    against: str
    state: State
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a run. `rows` has the comparison with the run before, if there was one."""

    statements: tuple[Statement, ...]
    rows: tuple[Row, ...] = ()
    unusable: tuple[str, ...] = field(default=())  # failed and worthless cells with their reason

    @property
    def good(self) -> bool:
        return not self.unusable and all(one.state != "worse" for one in self.statements)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence. Without anything to compare with, it says so."""
        if self.unusable:
            return f"{len(self.unusable)} cells have no figures: {self.unusable[0]}."
        worse = [one for one in self.statements if one.state == "worse"]
        if worse:
            return f"Slower than expected: {worse[0].text}."
        judged = [one.against for one in self.statements if one.state in {"good", "better"}]
        if not judged:
            return "Not judged: there is no run before it, no forecast and no reported figure for these cells."
        return f"As expected: {', '.join(dict.fromkeys(judged))}."

    def to_json(self) -> dict[str, Any]:
        return {
            "good": self.good,
            "sentence": self.sentence,
            "unusable": list(self.unusable),
            "statements": [{"against": one.against, "state": one.state, "text": one.text} for one in self.statements],
            "rows": [row.to_json() for row in self.rows],
        }


def verdict(
    run: Run, baseline: Run | None, recipe: Document | None, reported: Iterable[ReportedFigure] = ()
) -> Verdict:
    """Return the verdict on a run. `recipe` is None for a server without one, `reported` the profile's figures."""
    rows = tuple(comparison.rows(baseline, run)) if baseline else ()
    statements = [*(_baseline_statements(baseline, run, rows) if baseline else ())]
    if recipe is not None:
        statements += _forecast_statements(run, recipe)
        statements += _reported_statements(run, recipe["name"], reported)
    unusable = tuple(
        f"{cell['cell']['id']} {cell['state']}: {'; '.join(fault['what'] for fault in cell['faults'])}"
        for cell in run.cells
        if cell["state"] != "measured"
    )
    return Verdict(tuple(statements), rows, unusable)


def _baseline_statements(baseline: Run, run: Run, rows: Iterable[Row]) -> Iterator[Statement]:
    judged = [row for row in rows if row.ratio is not None]
    against = f"run of {baseline.record['started']}"
    changed = [row for row in judged if row.state in {"worse", "better"}]
    for row in changed:
        before, after = baseline.cell(row.cell), run.cell(row.cell)
        yield Statement(against, "worse" if row.state == "worse" else "better", _change(row, before, after))
    if judged and not changed:
        yield Statement(against, "good", f"{len(judged)} figures are within their bands")
    if not judged:
        yield Statement(against, "unknown", "both runs have no cell in common")


def _change(row: Row, before: CellRecord | None, after: CellRecord | None) -> str:
    assert row.ratio is not None  # noqa: S101 - the caller has chosen such rows
    assert row.band is not None  # noqa: S101
    change = f"{row.ratio - 1:+.1%}, band {row.band.width:.1%}"
    text = f"{row.cell}: {row.metric} {row.baseline:.4g} became {row.other:.4g} ({change})"
    found = causes.causes(before, after) if before and after and row.state == "worse" else []
    if row.state == "worse" and not found:
        return f"{text}; the records show no cause"
    return "; ".join([text, *found])


def _forecast_statements(run: Run, recipe: Document) -> Iterator[Statement]:
    """Yield the judgement of decode against the forecast, which is for one stream at a short context."""
    predicted = forecast.predicted(recipe, ForecastRequest())
    speeds = [
        cell["figures"]["decode"]["median"]
        for cell in run.cells
        if "decode" in cell["figures"] and cell["cell"]["streams"] == 1 and not cell["cell"]["depth"]
    ]
    if predicted is None or not speeds:
        missing = "the recipe has no forecast" if predicted is None else "no cell has one stream without depth"
        yield Statement("forecast", "unknown", missing)
        return
    measured = statistics.median(speeds)
    text = f"decode {measured:.4g} tok/s, forecast {predicted.low:.4g} to {predicted.high:.4g}"
    state: State = "worse" if measured < predicted.low else "better" if measured > predicted.high else "good"
    yield Statement("forecast", state, text)


def _reported_statements(run: Run, recipe: str, reported: Iterable[ReportedFigure]) -> Iterator[Statement]:
    for figure in reported:
        if figure.recipe != recipe or not isinstance(figure.value, int | float):
            continue
        against = f"report {figure.report}"
        cell = run.cell(figure.cell)
        measured = cell["figures"].get(figure.metric) if cell else None
        if measured is None:
            yield Statement(against, "unknown", f"{figure.metric} {figure.value:g} is not measured")
            continue
        ratio = measured["median"] / figure.value
        shortfall = 1 - ratio if comparison.JUDGED.get(figure.metric, True) else ratio - 1
        state: State = "worse" if shortfall > BETWEEN_OPERATORS else "good"
        yield Statement(against, state, f"{figure.metric} {measured['median']:.4g}, reported {figure.value:g}")
