"""Fit of the Spark's constants: `python -m lab.forecast.fit [--steps N]`, in two minutes a step.

Prints each constant before and after, and the errors: of the fit, and of operators that were left out of it. The
figures are the rows of measured, gathered and unseen, and the field reports; the rows that were held back, those that
came later and those of unmet operators give nothing. An operator counts as much as his rows of a kind to the power 0.4,
and a large error counts less than its share (Cauchy's loss), so neither one machine nor a wrong fact decides. Each
constant starts at the value of hardware.yml, which is also its prior. An operator is left out by one step of Gauss and
Newton from the fit of all.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from lab.forecast import judge, measured_rows, reported_speeds
from lab.forecast.judge import Judged
from lab.forecast.measured_rows import Configuration, Row
from vllm_spark.recipe.architecture import Architecture
from vllm_spark.sizing import constants
from vllm_spark.sizing.burst import Served
from vllm_spark.sizing.constants import Constants

# Facts of rows and of models that are fitted beside the constants of the hardware: how alike streams of one text are,
# and the share of a model's experts among which its router is even.
ALIKE = "apart_alike"
USED = {"used by gemma-4": ("gemma-4-26b-a4b",), "used by gpt-oss": ("gpt-oss-120b", "gpt-oss-20b")}

# Standard deviation of an error's logarithm, by kind of figure, and of a constant's logarithm before the fit.
NOISE = {"speed": 0.08, "first token": 0.20}
PRIOR = 0.6
# Power of the number of an operator's rows that he counts, the errors at which the loss bends, in standard deviations,
# and how much more the field reports count, for whose owners this is written.
ROWS_POWER, BEND, REPORTS = 0.4, 1.5, 2.5
FIELD_REPORTS = "field reports"
STEPS, DIFFERENCE = 2, 1e-3

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured speed or first token. `error` is the logarithm of predicted over measured, with given values."""

    operator: str
    group: str
    kind: str
    error: Callable[[Values], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    figures = list(given())
    values = fitted(figures, start(), parser.parse_args().steps)
    for name, value in values.items():
        print(f"{name:<28}{start()[name]:>12.4g}{value:>12.4g}")
    print_errors("fitted", [(figure, figure.error(values)) for figure in figures])
    print_errors("left out", list(left_out(figures, values)))


def start() -> dict[str, float]:
    """Return name -> value before the fit, of everything that is fitted."""
    entry = constants.spark()
    fitted_names = [name for name in entry["constants"] if name not in entry["by_hand"]]
    used = {name: _used(measured_rows.shape(models[0])) for name, models in USED.items()}
    return {name: entry["constants"][name] for name in fitted_names} | {ALIKE: measured_rows.APART_ALIKE} | used


def _used(shape: Architecture) -> float:
    return shape.experts.used if shape.experts else 0.0


def bounds(name: str) -> tuple[float, float]:
    """Return the least and the greatest value of what is fitted."""
    least, most = constants.spark()["bounds"].get(name, (0.01, 1.0))
    return max(least, 1e-12), most


def public(*folders: Path) -> Iterator[Figure]:
    """Yield the figures of the rows of some folders."""
    for entry in measured_rows.configurations(*folders):
        for row in entry.rows:
            yield from figures_of(entry, row)


def given() -> Iterator[Figure]:
    """Yield every figure that a fit may use."""
    yield from public(*measured_rows.FITTED)
    for source in ("seeds", "held_back"):
        for report in reported_speeds.rows(source):
            operator = FIELD_REPORTS if source == "seeds" else report.source.partition("/")[0]
            kind = judge.of_speed(report.load.tensor_parallel, report.load.streams, report.load.drafted)
            yield Figure(operator, kind, "speed", _reported(report))


def figures_of(entry: Configuration, row: Row) -> Iterator[Figure]:
    """Yield the figures of one row."""
    served = cache(lambda values: _served(entry, row, dict(values)))
    if row.decode or row.total:
        group = judge.of_speed(entry.tensor_parallel, row.streams, entry.drafted)

        def speed(values: Values) -> float:
            return math.log1p(measured_rows.speed_error(row, served(tuple(values.items()))) or 0.0)

        yield Figure(entry.operator, group, "speed", speed)
    if measured_rows.judges_first_token(entry, row):

        def first(values: Values) -> float:
            return math.log1p(measured_rows.first_token_error(entry, row, served(tuple(values.items()))) or 0.0)

        yield Figure(entry.operator, judge.of_first_token(row), "first token", first)


def _served(entry: Configuration, row: Row, values: Values) -> Served:
    load = replace(entry.load(), apart=values[ALIKE]) if entry.alike else None
    return entry.served(row, _constants(values), _shape(entry.shape, values), load)


def _reported(report: reported_speeds.Row) -> Callable[[Values], float]:
    def error(values: Values) -> float:
        shape = _shape(report.architecture, values)
        return math.log1p(replace(report, architecture=shape).error(_constants(values)))

    return error


def _constants(values: Values) -> Constants:
    return constants.constants_of({name: value for name, value in values.items() if name not in (ALIKE, *USED)})


def _shape(shape: Architecture, values: Values) -> Architecture:
    for name, models in USED.items():
        if shape.name in models and shape.experts:
            return replace(shape, experts=replace(shape.experts, used=values[name]))
    return shape


def fitted(figures: Sequence[Figure], first: Values, steps: int) -> dict[str, float]:
    """Return the values that fit the figures best, after some steps from the first ones."""
    values = dict(first)
    for _ in range(steps):
        errors, slopes = linear(figures, values)
        values = moved(values, first, errors, slopes, weights(figures, errors))
    return values


def linear(figures: Sequence[Figure], values: Values) -> tuple[list[float], list[list[float]]]:
    """Return the errors, and for each value how they change with its logarithm."""
    errors = [figure.error(values) for figure in figures]
    slopes = []
    for name in values:
        other = {**values, name: values[name] * math.exp(DIFFERENCE)}
        slopes.append([(figure.error(other) - e) / DIFFERENCE for figure, e in zip(figures, errors, strict=True)])
    return errors, slopes


def weights(figures: Sequence[Figure], errors: Sequence[float]) -> list[float]:
    """Return how much each figure counts."""
    counts = Counter((figure.operator, figure.group) for figure in figures)
    result = []
    for figure, error in zip(figures, errors, strict=True):
        share = counts[figure.operator, figure.group] ** (ROWS_POWER - 1)
        if figure.operator == FIELD_REPORTS:
            share *= REPORTS**2
        deviations = error / NOISE[figure.kind] * math.sqrt(share)
        result.append(share / NOISE[figure.kind] ** 2 / (1 + (deviations / BEND) ** 2))
    return result


def inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the inverse of a symmetric positive matrix (Gauss-Jordan)."""
    size = len(matrix)
    rows = [[*row, *(float(column == number) for column in range(size))] for number, row in enumerate(matrix)]
    for number in range(size):
        rows[number] = [value / rows[number][number] for value in rows[number]]
        for other in range(size):
            if other != number:
                share = rows[other][number]
                rows[other] = [a - share * b for a, b in zip(rows[other], rows[number], strict=True)]
    return [row[size:] for row in rows]


def moved(
    values: Values, first: Values, errors: Sequence[float], slopes: Sequence[Sequence[float]], weight: Sequence[float]
) -> dict[str, float]:
    """Return the values after one step of least squares, inside their bounds."""
    curvature = [
        [math.fsum(w * a * b for w, a, b in zip(weight, one, other, strict=True)) for other in slopes] for one in slopes
    ]
    pull = []
    for number, (name, slope) in enumerate(zip(values, slopes, strict=True)):
        curvature[number][number] += PRIOR**-2
        log = math.log(values[name] / first[name])
        pull.append(math.fsum(w * s * e for w, s, e in zip(weight, slope, errors, strict=True)) + log / PRIOR**2)
    result = {}
    for name, row in zip(values, inverse(curvature), strict=True):
        least, most = bounds(name)
        change = math.fsum(a * b for a, b in zip(row, pull, strict=True))
        result[name] = min(most, max(least, values[name] * math.exp(max(-1.0, min(1.0, -change)))))
    return result


def left_out(figures: Sequence[Figure], values: Values) -> Iterator[tuple[Figure, float]]:
    """Yield each figure with its error by constants that were fitted without its operator."""
    errors, slopes = linear(figures, values)
    known = weights(figures, errors)
    for operator in sorted({figure.operator for figure in figures}):
        some = [0.0 if figure.operator == operator else w for figure, w in zip(figures, known, strict=True)]
        without = moved(values, start(), errors, slopes, some)
        yield from ((figure, figure.error(without)) for figure in figures if figure.operator == operator)


def print_errors(title: str, errors: Sequence[tuple[Figure, float]]) -> None:
    """Print the errors of each kind, each operator counted once."""
    figures = [Judged(one.operator, one.group, math.exp(error), judge.printed(one.group)) for one, error in errors]
    print(*judge.lines({title: figures}), sep="\n")


if __name__ == "__main__":
    main()
