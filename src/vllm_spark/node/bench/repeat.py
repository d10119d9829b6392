"""How often a cell is run: until its figures agree, and longer while a verdict would see little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.node.bench import bands, figures

# A band that is wider hides a server which is ten percent slower.
USEFUL = 0.1


@dataclass(frozen=True, slots=True)
class Rules:
    """When a cell ends: after `least_runs` whose leading metrics have a spread of `spread` or less, or `most_runs`.

    A cell whose band is wider than USEFUL goes on until it is not, or until `limit_runs`; 0: it does not go on.
    `warm_up` runs come before and are not counted. With `hours`, all cells are repeated until that time has passed.
    """

    least_runs: int = 3
    most_runs: int = 7
    spread: float = 0.01
    warm_up: int = 1
    hours: float | None = None
    limit_runs: int = 0

    @property
    def last(self) -> int:
        """The number of runs after which a cell ends, whatever its figures are."""
        return max(self.most_runs, self.limit_runs)


def enough(rules: Rules, runs: int, leading: Sequence[Sequence[float]], comparisons: int) -> bool:
    """Return True if a cell ends after its runs. `leading` has the values of each leading figure, `comparisons` the
    number of leading figures of all cells."""
    if runs >= rules.last:
        return True
    if runs >= rules.least_runs and all(_agree(rules, values) for values in leading):
        return True
    return runs >= rules.most_runs and all(_band(values, comparisons) <= USEFUL for values in leading)


def noisy(rules: Rules, leading: Mapping[str, Sequence[float]], comparisons: int) -> list[str]:
    """Return a text for each leading figure whose band is not useful although its cell went on."""
    if not rules.limit_runs:
        return []
    bandwidths = {metric: (len(values), _band(values, comparisons)) for metric, values in leading.items()}
    return [
        f"{metric} varies: after {runs} runs a change below {100 * width:.0f} % is not visible"
        for metric, (runs, width) in bandwidths.items()
        if width > USEFUL and not _agree(rules, leading[metric])
    ]


def _agree(rules: Rules, values: Sequence[float]) -> bool:
    spread = figures.spread(values)
    return len(values) >= rules.least_runs and spread is not None and spread <= rules.spread


def _band(values: Sequence[float], comparisons: int) -> float:
    return bands.of_medians(values, comparisons)
