"""A cell is run again while its figures vary so much that a verdict would see little, up to a limit."""

from __future__ import annotations

import random

import pytest

from vllm_spark.node.bench import bands, repeat
from vllm_spark.node.bench.repeat import Rules

STANDARD = Rules(least_runs=3, most_runs=7, spread=0.01, limit_runs=21)
COMPARISONS = 8


def drawn(sigma: float, seed: int) -> list[float]:
    """Return as many values as the limit allows, with a relative spread."""
    source = random.Random(seed)  # noqa: S311  noise of a test
    return [100.0 * (1 + source.gauss(0, sigma)) for _ in range(STANDARD.last)]


def runs(rules: Rules, *leading: list[float]) -> int:
    """Return after how many runs a cell with these leading figures ends."""
    so_far = range(rules.last + 1)
    return next(n for n in so_far if repeat.enough(rules, n, [values[:n] for values in leading], COMPARISONS))


# Rules, spread of each leading figure, and the least and the most runs that are right.
CASES = {
    "steady": (STANDARD, [0.002], 3, 3),
    "varies a little": (STANDARD, [0.02], 4, 7),
    "varies": (STANDARD, [0.045], 8, 20),
    "varies too much": (STANDARD, [0.3], 21, 21),
    "one of two varies": (STANDARD, [0.002, 0.3], 21, 21),
    "no limit above the most": (Rules(3, 7, 0.01), [0.3], 7, 7),
    "two runs": (Rules(2, 2, 0.05), [0.3], 2, 2),
}


@pytest.mark.parametrize(("rules", "sigmas", "least", "most"), CASES.values(), ids=CASES)
def test_a_cell_goes_on_until_its_band_is_useful(rules: Rules, sigmas: list[float], least: int, most: int) -> None:
    found = [runs(rules, *(drawn(sigma, 10 * seed + at) for at, sigma in enumerate(sigmas))) for seed in range(8)]
    assert least <= sorted(found)[4] <= most
    assert max(found) <= rules.last


def test_what_stays_noisy_is_said_with_its_band() -> None:
    values = drawn(0.3, 1)
    [text] = repeat.noisy(STANDARD, {"total": values, "first_token": [70.0] * 21}, COMPARISONS)
    assert text.startswith("total varies: after 21 runs a change below ")
    assert f"{100 * bands.of_medians(values, COMPARISONS):.0f} %" in text
    assert repeat.noisy(Rules(3, 7, 0.01), {"total": values}, COMPARISONS) == []


@pytest.mark.parametrize("values", [[], [5.0], [0.0, 5.0]])
def test_a_band_that_is_unknown_needs_no_more_runs(values: list[float]) -> None:
    assert bands.of_medians(values, COMPARISONS) == 0.0
