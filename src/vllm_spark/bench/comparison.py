"""Compare two runs cell by cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from vllm_spark.bench.evidence import Run
from vllm_spark.bench.noise import Band, Noise
from vllm_spark.node.bench.records import CellRecord, Key

# Judged metrics, and whether more is better.
JUDGED = {
    "decode": True,
    "total": True,
    "prefill": True,
    "first_token": False,
    "step": False,
    "acceptance": True,
    "start": False,
    "memory": False,
}
# The toolkit's own version and the hosts' names do not change what a server can do.
REPORTED_ONLY = ("toolkit",)

State = Literal["same", "better", "worse", "not measured"]


@dataclass(frozen=True, slots=True)
class Row:
    """A metric of a cell in both runs. `ratio` is the other run's median / the baseline's. None: not measured."""

    cell: str
    metric: str
    baseline: float | None
    other: float | None
    ratio: float | None
    band: Band | None
    state: State

    def to_json(self) -> dict[str, Any]:
        band = {"width": self.band.width, "source": self.band.source} if self.band else None
        return {
            "cell": self.cell,
            "metric": self.metric,
            "baseline": self.baseline,
            "other": self.other,
            "ratio": self.ratio,
            "band": band,
            "state": self.state,
        }


def changes(baseline: Key, other: Key) -> dict[str, tuple[str, str]]:
    """Return what differs between two keys: name -> (value of the baseline, value of the other). Unknown is ""."""
    names = sorted(Key.__required_keys__)
    return {name: (baseline[name], other[name]) for name in names if baseline[name] != other[name]}  # type: ignore[literal-required]


def comparable(baseline: Key, other: Key) -> bool:
    """Return True if only parts differ that do not change what a server can do."""
    return not set(changes(baseline, other)) - set(REPORTED_ONLY)


def rows(baseline: Run, other: Run) -> Iterator[Row]:
    """Yield a row per judged metric and cell: the cells of the baseline, then those that only `other` has."""
    key, within = other.record["key"], Noise.of(*baseline.cells, *other.cells)
    for cell in baseline.cells:
        yield from _cell_rows(cell, other.cell(cell["cell"]["id"]), key, within)
    known = {cell["cell"]["id"] for cell in baseline.cells}
    for cell in other.cells:
        if cell["cell"]["id"] not in known:
            yield from _cell_rows(None, cell, key, within)


def _cell_rows(before: CellRecord | None, after: CellRecord | None, key: Key, within: Noise) -> Iterator[Row]:
    cell = before or after
    if cell is None:
        return
    id_ = cell["cell"]["id"]
    for metric, more_is_better in JUDGED.items():
        one = before["figures"].get(metric) if before else None
        two = after["figures"].get(metric) if after else None
        if one is None and two is None:
            continue
        if one is None or two is None or not one["median"]:
            values = [float(figure["median"]) if figure else None for figure in (one, two)]
            yield Row(id_, metric, values[0], values[1], None, None, "not measured")
            continue
        band = within.band(metric, cell, (one, two), key)
        ratio = two["median"] / one["median"]
        yield Row(id_, metric, one["median"], two["median"], ratio, band, _state(ratio - 1, band, more_is_better))


def _state(change: float, band: Band, more_is_better: bool) -> State:
    if abs(change) <= band.width:
        return "same"
    return "better" if (change > 0) == more_is_better else "worse"
