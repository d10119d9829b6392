"""Comparison of two runs, metric by metric, with a band of noise for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from vllm_spark.bench import cause, key, noise
from vllm_spark.bench.evidence import BY_POSITION, Evidence
from vllm_spark.bench.noise import Noise
from vllm_spark.core import paths
from vllm_spark.node.bench.leading import leading_metrics, measures_prompt
from vllm_spark.node.bench.records import UNITS, Cell, CellRecord, Figure
from vllm_spark.recipe import architecture, loader

Judgement = Literal["same", "better", "worse", "changed", "not measured", "worthless"]

MORE_IS_BETTER = frozenset({"decode", "total", "prefill", "tokens_per_step", "acceptance"})
# Figures of the prompt.
OF_PROMPT = frozenset({"first_chunk", "first_token", "first_answer", "prefill"})
# A length, a single gap and the client's own lag are no speeds of the server: a change is shown and not judged.
NOT_JUDGED = frozenset({"output", "prompt", "longest_gap", "gap_p99", "lag"})
TOPOLOGY_TP = "tp "
TOO_NOISY = "too noisy"
# A band that is wider cannot tell an unchanged server from a broken one: twice the largest floor.
WIDEST = 2 * noise.MANY


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of a cell in two runs. `band` is relative to `old`. A value that was not measured is None.

    `leading`: the cell is measured for this metric.
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

    changed: tuple[str, ...]
    comparable: bool
    rows: tuple[Row, ...]
    causes: dict[str, str]


def compare(old: Evidence, new: Evidence) -> Comparison:
    """Return the comparison of all cells of both runs."""
    old_key, new_key = old.run["key"], new.run["key"]
    rows = tuple(row for cell in dict.fromkeys([*old.cells, *new.cells]) for row in _rows(cell, old, new))
    worse = dict.fromkeys(row.cell for row in rows if row.judgement == "worse")
    return Comparison(
        changed=tuple(key.changes(old_key, new_key)),
        comparable=key.comparable(old_key, new_key),
        rows=rows,
        causes={cell: cause.sentence(old.cells[cell], new.cells[cell]) for cell in worse},
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


def _rows(name: str, old: Evidence, new: Evidence) -> Iterator[Row]:
    before, after = old.cells.get(name), new.cells.get(name)
    if after is None or before is None:
        side = "the new run" if after is None else "the old run"
        yield Row(name, "all", "", None, None, None, "not measured", f"not in {side}")
        return
    for cell, side in ((after, "new run"), (before, "old run")):
        if reason := worthless(cell):
            judgement: Judgement = "worthless" if cell is after else "not measured"
            yield Row(name, "all", "", None, None, None, judgement, f"{side}: {reason}")
            return
    leading = leading_metrics(after["cell"])
    for metric in dict.fromkeys([*leading, *before["figures"], *after["figures"]]):
        if metric != BY_POSITION:
            yield replace(_row(metric, before, after, old, new), leading=metric in leading)


def _row(metric: str, before: CellRecord, after: CellRecord, old: Evidence, new: Evidence) -> Row:
    name = after["cell"]["id"]
    first, second = before["figures"].get(metric), after["figures"].get(metric)
    if first is None or second is None:
        present = first or second
        unit = present["unit"] if present else ""
        values = (first["median"] if first else None, second["median"] if second else None)
        where = "in one run only" if present else "in neither run"
        return Row(name, metric, unit or UNITS[metric], *values, None, "not measured", where)
    streams, experts = after["cell"]["streams"], has_experts(new.run["subject"]["recipe"])
    smallest = noise.floor(streams=streams, tensor_parallel=tensor_parallel(new), experts=experts)
    load = _noise(metric, after["cell"], old, new)
    comparisons = sum(len(cell["figures"].keys() - {BY_POSITION}) for cell in new.cells.values())
    width = noise.band(first["values"], second["values"], load, smallest, comparisons)
    judgement = judge(metric, first["median"], second["median"], width)
    note = "" if load.freedom else "noise unknown: one value per run"
    if width > WIDEST and judgement == "same":
        judgement, note = "not measured", f"{TOO_NOISY}: a change below {width:.0%} is not visible"
    return Row(name, metric, second["unit"], first["median"], second["median"], width, judgement, note)


def judge(metric: str, old: float, new: float, width: float) -> Judgement:
    """Return the judgement of a new value. `width` is relative to the old one."""
    if abs(new - old) <= width * abs(old):
        return "same"
    if metric in NOT_JUDGED:
        return "changed"
    return "better" if (new > old) == (metric in MORE_IS_BETTER) else "worse"


def _noise(metric: str, like: Cell, *runs: Evidence) -> Noise:
    """Return the noise of a metric in the cells of both runs that are alike in what makes its noise."""
    cells = [cell for run in runs for cell in run.cells.values() if not worthless(cell)]
    alike = [cell for cell in cells if _source(metric, cell["cell"]) == _source(metric, like)]
    return noise.pooled(cell["figures"][metric]["values"] for cell in alike if metric in cell["figures"])


def _source(metric: str, cell: Cell) -> tuple[bool, bool]:
    """Return what the noise of a metric depends on: one stream or several; for figures of the prompt also its length.

    On H200s the first token of 512 tokens varied by 1 to 24 %, that of 8192 by 0.2 to 2 % (recipes/evidence).
    """
    return cell["streams"] > 1, metric in OF_PROMPT and measures_prompt(cell)
