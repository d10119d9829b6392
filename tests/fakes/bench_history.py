"""Histories of runs of one server, made from real evidence: figures, their spread inside a run, and between runs.

A real file is the template. The spread inside a run is that of the file, at most INSIDE. The spread between runs is
given: on even seeds one factor for the whole run (clocks, heat), on odd ones a factor for each cell.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fakes.bench_runs import figure
from vllm_spark.bench import evidence
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import paths
from vllm_spark.node.bench.leading import leading_metrics
from vllm_spark.node.bench.records import CellRecord

H200 = paths.RECIPES / "evidence" / "h200-bench"
INSIDE = 0.05
# Power of a leading figure in the slowness of a server. The others are not judged, so a history does not have them.
SLOWNESS = {"decode": -1, "total": -1, "first_token": 1}


@dataclass(frozen=True)
class Server:
    """A real file and which of its cells are used: those of one stream, or of several."""

    file: str
    several: bool = False

    def template(self) -> Evidence:
        run = evidence.read(H200 / f"{self.file}.jsonl")
        cells = {name: cell for name, cell in run.cells.items() if (cell["cell"]["streams"] > 1) == self.several}
        return replace(run, cells=cells)


def history(
    template: Evidence, seed: int, sigma: float, slowness: Sequence[float], *, jitter: float = 0.0
) -> list[Evidence]:
    """Return a run for each slowness, in order. 1.1: ten percent slower than the template.

    `sigma` is the relative spread between runs; `jitter` the share of values that are 15 % slower.
    """
    source = random.Random(f"{seed} {sigma}")  # noqa: S311  noise of a test
    common = seed % 2 == 0
    return [
        _run(template, number, factor, _Noise(source, sigma, common, jitter)) for number, factor in enumerate(slowness)
    ]


class _Noise:
    """The noise of one run."""

    def __init__(self, source: random.Random, sigma: float, common: bool, jitter: float) -> None:
        self.source, self.sigma, self.common, self.jitter = source, sigma, common, jitter
        self.factor = self.between()

    def between(self) -> float:
        return math.exp(self.source.gauss(0, self.sigma))

    def of_cell(self) -> float:
        return self.factor if self.common else self.between()

    def inside(self, spread: float) -> float:
        late = 1.15 if self.source.random() < self.jitter else 1.0
        return late * math.exp(self.source.gauss(0, spread))


def _run(template: Evidence, number: int, slowness: float, noise: _Noise) -> Evidence:
    started = f"2026-{1 + number // 28:02}-{1 + number % 28:02}T08:00:00Z"
    record = {**template.run, "id": f"{number:012x}", "started": started}
    cells = {name: _cell(cell, slowness, noise) for name, cell in template.cells.items()}
    return replace(template, file=Path(f"{number}.jsonl"), run=record, cells=cells)  # type: ignore[arg-type]


def _cell(cell: CellRecord, slowness: float, noise: _Noise) -> CellRecord:
    factor = noise.of_cell()
    figures: dict[str, Any] = {}
    for metric in leading_metrics(cell["cell"]):
        known = cell["figures"][metric]
        spread = min(known["spread"] or 0.0, INSIDE)
        several = [
            known["median"] * (slowness * factor * noise.inside(spread)) ** SLOWNESS[metric] for _ in known["values"]
        ]
        figures[metric] = figure(metric, several)
    return {**cell, "figures": figures}
