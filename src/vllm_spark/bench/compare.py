"""Comparison of a run with earlier ones, metric by metric, with a band of noise for each leading figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vllm_spark.bench import cause, key, noise
from vllm_spark.bench.evidence import BY_POSITION, Evidence
from vllm_spark.node.bench import bands
from vllm_spark.node.bench.leading import FIRST, leading_metrics, measures_prompt
from vllm_spark.node.bench.records import UNITS, Cell, CellRecord, Figure

# `shown`: the cell is not measured for this metric, so a change of it is not judged.
Judgement = Literal["same", "better", "worse", "shown", "not measured", "worthless"]
JUDGED = frozenset({"same", "better", "worse"})

MORE_IS_BETTER = frozenset({"decode", "total", "prefill", "tokens_per_step", "acceptance", "documents", "read"})
TOO_NOISY = "too noisy"
DRIFT = "drift"
# A band that is wider cannot tell an unchanged server from a broken one.
WIDEST = 0.2


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of a cell in earlier runs and in this one. A value that was not measured is None.

    `old` is the level of the earlier runs. `band` is that of the logarithm of the ratio; None: not judged. `leading`:
    the cell is measured for this metric.
    """

    cell: str
    metric: str
    unit: str
    old: float | None
    new: float | None
    band: float | None
    judgement: Judgement
    note: str = ""
    leading: bool = False

    @property
    def ratio(self) -> float | None:
        return self.new / self.old if self.old and self.new is not None else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison. `causes` has a sentence by cell for cells that are worse."""

    changed: tuple[str, ...] = ()
    comparable: bool = True
    rows: tuple[Row, ...] = ()
    causes: dict[str, str] = field(default_factory=dict)


def compare(history: Sequence[Evidence], run: Evidence) -> Comparison:
    """Return the comparison of a run with earlier ones, the oldest first. The key is compared with that of the last
    one, and a slower cell with the last one that was not slower."""
    if not history:
        return Comparison()
    last = history[-1]
    rows = tuple(_Judge(history, run).rows())
    worse = dict.fromkeys(row.cell for row in rows if row.judgement == "worse")
    return Comparison(
        changed=tuple(key.changes(last, run)),
        comparable=key.comparable(last, run),
        rows=rows,
        causes={cell: cause.sentence(_sound(history, cell, rows), run.cells[cell]) for cell in worse},
    )


def worthless(cell: CellRecord) -> str:
    """Return why a cell has no figures that count, or an empty text. Faults of a measured cell are warnings."""
    if cell["state"] == "measured":
        return ""
    return ", ".join(filter(None, [cell["state"], faults(cell)]))


def too_noisy(figure: Figure) -> bool:
    """Return True for a figure whose values differ so much that its median says nothing."""
    return figure["spread"] is not None and figure["spread"] > WIDEST


def faults(cell: CellRecord) -> str:
    """Return the faults of a cell as text."""
    return "; ".join(f"{fault['id']}: {fault['what']}" for fault in cell["faults"])


def loss(metric: str, old: float, new: float) -> float:
    """Return the logarithm of how much slower a positive figure is; negative for a gain."""
    return math.log(old / new) if metric in MORE_IS_BETTER else math.log(new / old)


def judge(metric: str, old: float, new: float, width: float) -> Judgement:
    """Return the judgement of a positive value. `width` is that of the logarithm of the ratio."""
    lost = loss(metric, old, new)
    if abs(lost) <= width:
        return "same"
    return "worse" if lost > 0 else "better"


def _counted(history: Sequence[Evidence], cell: str) -> list[CellRecord]:
    """Return the records of a cell in the runs in which it has figures that count."""
    return [run.cells[cell] for run in history if cell in run.cells and not worthless(run.cells[cell])]


def _sound(history: Sequence[Evidence], cell: str, rows: Sequence[Row]) -> CellRecord:
    """Return the record of a cell whose figure is nearest to the level that the run is slower than."""
    row = next(row for row in rows if row.cell == cell and row.judgement == "worse")
    known = [record for record in _counted(history, cell) if _positive(record, row.metric)]
    return min(known, key=lambda record: abs(loss(row.metric, row.old or 1.0, record["figures"][row.metric]["median"])))


@dataclass(frozen=True, slots=True)
class _Judge:
    """The earlier runs and the run that is judged by them. `noise` is that between runs, by what makes a figure."""

    history: Sequence[Evidence]
    run: Evidence
    noise: dict[tuple[object, ...], bands.Noise] = field(default_factory=dict)

    def rows(self) -> Iterator[Row]:
        """Yield the rows of every cell of all runs."""
        names = dict.fromkeys(name for run in (*self.history, self.run) for name in run.cells)
        comparisons = sum(len(leading_metrics(cell["cell"])) for cell in self.run.cells.values())
        for name in names:
            yield from self.of_cell(name, comparisons)

    def of_cell(self, name: str, comparisons: int) -> Iterator[Row]:
        """Yield the rows of a cell: its leading figures first."""
        present = [run.cells[name] for run in self.history if name in run.cells]
        earlier, after = _counted(self.history, name), self.run.cells.get(name)
        if after is None or not present:
            side = "the new run" if after is None else "the old run"
            yield Row(name, "all", "", None, None, None, "not measured", f"not in {side}")
        elif reason := worthless(after):
            yield Row(name, "all", "", None, None, None, "worthless", f"new run: {reason}")
        elif not earlier:
            yield Row(name, "all", "", None, None, None, "not measured", f"old run: {worthless(present[-1])}")
        else:
            leading = leading_metrics(after["cell"])
            others = dict.fromkeys([*earlier[-1]["figures"], *after["figures"]])
            for metric in dict.fromkeys([*leading, *others]):
                if metric != BY_POSITION:
                    row = self.row(metric, after, earlier, comparisons if metric in leading else 0)
                    yield replace(row, leading=metric in leading)

    def row(self, metric: str, after: CellRecord, earlier: Sequence[CellRecord], comparisons: int) -> Row:
        """Return the row of a metric. Without `comparisons` it is not judged."""
        name, unit, new = after["cell"]["id"], UNITS[metric], after["figures"].get(metric)
        figures = [cell["figures"][metric] for cell in earlier if metric in cell["figures"]]
        if not figures or new is None:
            values = (figures[-1]["median"] if figures else None, new["median"] if new else None)
            where = "in one run only" if figures or new else "in neither run"
            return Row(name, metric, unit, *values, None, "not measured", where)
        if min(new["median"], *(figure["median"] for figure in figures)) <= 0 or not comparisons:
            return Row(name, metric, unit, figures[-1]["median"], new["median"], None, "shown")
        return self.judged(metric, after, figures, comparisons)

    def judged(self, metric: str, after: CellRecord, earlier: Sequence[Figure], comparisons: int) -> Row:
        """Return the row of a figure that is judged: by its recent level and by its best one."""
        new, like, first = after["figures"][metric], after["cell"], earlier[0]["median"]
        inside = bands.inside([new["values"], *(figure["values"] for figure in earlier)])
        known = self.between(metric, like)
        known = replace(known, sigma=max(known.sigma, bands.MEDIAN * inside.sigma / math.sqrt(len(new["values"]))))

        def width(level: noise.Level) -> float:
            return level.width(known, comparisons)

        losses = [loss(metric, first, figure["median"]) for figure in earlier]
        now = loss(metric, first, new["median"])
        recent, anchor = noise.levels(losses, width)
        lost = anchor if now - recent.loss <= width(recent) and now - anchor.loss > width(anchor) else recent
        old = first * math.exp(lost.loss * (-1 if metric in MORE_IS_BETTER else 1))
        band, visible = width(lost), f"a change below {math.expm1(width(lost)):.0%} is not visible"
        judgement, note = judge(metric, old, new["median"], band), ""
        if band > WIDEST and judgement == "same":
            judgement, note = "not measured", f"{TOO_NOISY}: {visible}"
        elif judgement == "worse" and lost is anchor:
            note = f"{DRIFT}: slower than its best {noise.LEAST} runs in a row"
        return Row(like["id"], metric, new["unit"], old, new["median"], band, judgement, note)

    def between(self, metric: str, like: Cell) -> bands.Noise:
        """Return the noise between the earlier runs of a metric, of all cells that are alike in what makes it."""
        source = metric, *_source(metric, like)
        if source not in self.noise:
            alike = [
                name
                for name, cell in self.run.cells.items()
                if _source(metric, cell["cell"]) == source[1:] and metric in leading_metrics(cell["cell"])
            ]
            figures = [[_positive(old, metric) for old in _counted(self.history, name)] for name in alike]
            courses = [[math.log(figure["median"]) for figure in one if figure] for one in figures]
            self.noise[source] = noise.between(courses)
        return self.noise[source]


def _positive(cell: CellRecord, metric: str) -> Figure | None:
    """Return a figure whose median has a logarithm, or None."""
    figure = cell["figures"].get(metric)
    return figure if figure and figure["median"] > 0 and not worthless(cell) else None


def _source(metric: str, cell: Cell) -> tuple[bool, bool]:
    """Return what the noise of a metric depends on: one stream or several; for the first token also the length of the
    prompt.

    On H200s the first token of 512 tokens varied by 1 to 24 %, that of 8192 by 0.2 to 2 % (recipes/evidence).
    """
    return cell["streams"] > 1, metric == FIRST and measures_prompt(cell)
