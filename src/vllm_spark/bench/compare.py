"""Comparison of a run with earlier ones, metric by metric, with a band of noise for each leading figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import Literal

from vllm_spark.bench import cause, key, noise
from vllm_spark.bench.evidence import BY_POSITION, Evidence
from vllm_spark.core import paths
from vllm_spark.node.bench import bands
from vllm_spark.node.bench.leading import FIRST, leading_metrics, measures_prompt
from vllm_spark.node.bench.records import UNITS, Cell, CellRecord, Figure
from vllm_spark.recipe import architecture, loader

# `shown`: the cell is not measured for this metric, so a change of it is not judged.
Judgement = Literal["same", "better", "worse", "shown", "not measured", "worthless"]
JUDGED = frozenset({"same", "better", "worse"})

MORE_IS_BETTER = frozenset({"decode", "total", "prefill", "tokens_per_step", "acceptance"})
TOPOLOGY_TP = "tp "
TOO_NOISY = "too noisy"
DRIFT = "drift"
IN_DOUBT = "in doubt"
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
    """Return the comparison of a run with earlier ones, the oldest first. The first one is the anchor: the keys and the
    causes are compared with it."""
    if not history:
        return Comparison()
    anchor = history[0]
    rows = tuple(_Judge(history, run).rows())
    worse = dict.fromkeys(row.cell for row in rows if row.judgement == "worse")
    return Comparison(
        changed=tuple(key.changes(anchor.run["key"], run.run["key"])),
        comparable=key.comparable(anchor.run["key"], run.run["key"]),
        rows=rows,
        causes={cell: cause.sentence(_counted(history, cell)[0], run.cells[cell]) for cell in worse},
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


def tensor_parallel(run: Evidence) -> int:
    """Return the width of the tensor parallelism that the key names, or 1."""
    _, named, rest = run.run["key"]["topology"].partition(TOPOLOGY_TP)
    digits = rest.partition(",")[0].strip()
    return int(digits) if named and digits.isdigit() else 1


@lru_cache
def has_experts(name: str) -> bool:
    """Return False for a dense model. A recipe that is not in the catalogue counts as a mixture of experts, whose band
    is the wider one."""
    folders = [paths.RECIPES]
    if name not in loader.names(folders):
        return True
    model = loader.load(name, folders).document["model"].get("architecture")
    return architecture.load(model).experts is not None if model else True


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


@dataclass(frozen=True, slots=True)
class Group:
    """The noise of alike cells: between the earlier runs, of this run beside the first, and inside the runs."""

    between: bands.Noise
    scatter: bands.Noise
    inside: bands.Noise


@dataclass(frozen=True, slots=True)
class _Judge:
    """The earlier runs and the run that is judged by them."""

    history: Sequence[Evidence]
    run: Evidence
    groups: dict[tuple[object, ...], Group] = field(default_factory=dict)

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
            return Row(name, metric, unit, figures[0]["median"], new["median"], None, "shown")
        return self.judged(metric, after, figures, comparisons)

    def judged(self, metric: str, after: CellRecord, earlier: Sequence[Figure], comparisons: int) -> Row:
        """Return the row of a figure that is judged."""
        new, like = after["figures"][metric], after["cell"]
        first = earlier[0]["median"]
        losses = [loss(metric, first, figure["median"]) for figure in earlier]
        smallest, known = self.floor(like), self.of_group(metric, like)
        level = noise.anchored(losses, max(smallest, known.between.band(comparisons, 2)))
        sides = 1 + 1 / len(level)
        if known.between.freedom:
            width = max(known.between.band(comparisons, sides), noise.SMALLEST)
        else:
            width = max(smallest, known.scatter.band(comparisons, sides))
        own = bands.inside([new["values"], *(figure["values"] for figure in earlier)])
        inside = bands.Noise(max(own.sigma, known.inside.sigma), known.inside.freedom)
        values = 1 / len(new["values"]) + 1 / sum(len(figure["values"]) for figure in earlier)
        width = max(width, bands.MEDIAN * inside.band(comparisons, values))
        now = loss(metric, first, new["median"]) - fmean(level)
        old = first * math.exp(fmean(level) * (-1 if metric in MORE_IS_BETTER else 1))
        few = f"{len(earlier)} of {noise.LEAST} earlier runs that tell the spread between runs"
        judgement, note = judge(metric, old, new["median"], width), "" if known.between.freedom else few
        sure = width if known.between.freedom else max(width, noise.doubt(comparisons, sides))
        drifts = noise.drift([*(one - fmean(level) for one in losses), now], sure) > noise.LIMIT
        if judgement == "worse" and now <= sure and not drifts:
            judgement, note = "not measured", f"{IN_DOUBT}: slower by {math.expm1(now):.1%}, with {few}"
        elif judgement == "same" and drifts:
            judgement, note = "worse", f"{DRIFT}: slower by less than the band, run after run"
        elif width > WIDEST and judgement == "same":
            judgement, note = "not measured", f"{TOO_NOISY}: a change below {math.expm1(width):.0%} is not visible"
        return Row(like["id"], metric, new["unit"], old, new["median"], width, judgement, note)

    def floor(self, like: Cell) -> float:
        """Return the band of a cell while there are few earlier runs."""
        experts = has_experts(self.run.run["subject"]["recipe"])
        return noise.floor(streams=like["streams"], tensor_parallel=tensor_parallel(self.run), experts=experts)

    def of_group(self, metric: str, like: Cell) -> Group:
        """Return the noise of a metric in the cells that are alike in what makes it."""
        source = metric, *_source(metric, like)
        if source not in self.groups:
            self.groups[source] = self.group(metric, like)
        return self.groups[source]

    def group(self, metric: str, like: Cell) -> Group:
        """Compute the noise of a metric in the cells that are alike."""
        courses, changes, values = [], [], []
        for name, cell in self.run.cells.items():
            new = _positive(cell, metric)
            alike = _source(metric, cell["cell"]) == _source(metric, like) and metric in leading_metrics(cell["cell"])
            if not alike or new is None:
                continue
            earlier = [figure for old in _counted(self.history, name) if (figure := _positive(old, metric))]
            values += [new["values"], *(figure["values"] for figure in earlier)]
            courses.append([math.log(figure["median"]) for figure in earlier])
            changes += [loss(metric, figure["median"], new["median"]) for figure in earlier[:1]]
        return Group(noise.between(courses), noise.scatter(changes), bands.inside(values))


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
