"""Cells that differ in one dimension only, as series of panels: what most plots have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import names, panel, svg, text
from vllm_spark.bench.report.panel import Panel, Point, Series
from vllm_spark.bench.report.scale import Axis
from vllm_spark.bench.report.text import figure, is_number, letter
from vllm_spark.node.bench.records import Cell, CellRecord

# Dimensions of a cell by which a group is named, in the order of its name.
DIMENSIONS: Mapping[str, Callable[[Cell], str]] = {
    "corpus": lambda cell: text.plain(cell["corpus"]),
    "prompt": lambda cell: f"prompt {text.length(cell['prompt'])}",
    "output": lambda cell: f"output {text.length(cell['output'])}",
    "depth": lambda cell: f"depth {text.length(cell['depth'])}",
    "streams": lambda cell: f"{cell['streams']} stream{'' if cell['streams'] == 1 else 's'}",
    "sampling": lambda cell: text.settings(cell["sampling"]),
    "server": lambda cell: text.settings(cell["server"]),
}
SeriesKey = tuple[str, ...]
# Swatch, letter of the run or nothing, and words.
Legend = tuple[tuple[Markup, str, str], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn plot: (title, svg) of each panel, and a legend. A note ends the caption."""

    panels: tuple[tuple[str, Markup], ...]
    legend: Legend = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one run and one group."""

    run: int
    group: SeriesKey
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class View:
    """A panel to be made of the lines of one metric. `title` is the metric's name where a plot has several."""

    title: str
    y_label: str
    lines: Sequence[Line]


def lines(
    runs: Sequence[Evidence],
    metric: Callable[[Cell], str],
    x: Callable[[Cell], float | None],
    ignored: str,
    unit: float = 1.0,
) -> list[Line]:
    """Return a line for each run and each group of cells that are alike except in x and in the ignored dimension.

    `unit` divides the values. Groups with fewer than two places on the axis in every run are left out."""
    found: dict[tuple[int, SeriesKey], list[Point]] = {}
    for index, run in enumerate(runs):
        for record in run.cells.values():
            place = x(record["cell"])
            if place is None or not (known := _point(record, metric(record["cell"]), place, unit)):
                continue
            group = tuple("" if name == ignored else words(record["cell"]) for name, words in DIMENSIONS.items())
            found.setdefault((index, group), []).append(known)
    sweeps = {group for (_, group), points in found.items() if len({point.x for point in points}) > 1}
    return [Line(index, group, merged(points)) for (index, group), points in found.items() if group in sweeps]


def merged(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return one point per place on the axis, in order: the median of those there, and their extremes."""
    places: dict[float, list[Point]] = {}
    for point in points:
        places.setdefault(point.x, []).append(point)
    return tuple(_median(places[x]) for x in sorted(places))


def _median(points: list[Point]) -> Point:
    if len(points) == 1:
        return points[0]
    y, low, high = median(p.y for p in points), min(p.low for p in points), max(p.high for p in points)
    return Point(points[0].x, y, low, high, f"{text.number(y)}, median of {len(points)} cells: {points[0].title} …")


def _point(record: CellRecord, metric: str, x: float, unit: float) -> Point | None:
    known = figure(record, metric)
    if not known:
        return None
    values = [value for value in known["values"] if is_number(value)] or [known["median"]]
    spread = "" if known["spread"] is None else f", spread {text.percent(known['spread'])}"
    title = f"{record['cell']['id']}: {text.number(known['median'])} {known['unit']}{spread}, {len(values)} values"
    return Point(x, known["median"] / unit, min(values) / unit, max(values) / unit, title)


def panels(
    views: Sequence[View],
    runs: Sequence[Evidence],
    x_label: str,
    x: Callable[[list[float]], Axis],
    y: Callable[[list[float]], Axis],
) -> Drawn | None:
    """Return the panels of a plot, or None without lines. Panels with the same vertical label share their axis.

    Series are the groups of a single run, if there are markers for them, or else the runs, with a panel per group."""
    every = [line for view in views for line in view.lines]
    if not every:
        return None
    named = _group_names(line.group for line in every)
    by_group = len({line.run for line in every}) == 1 and len(named) <= svg.SHAPE_COUNT
    x_axis = x([point.x for line in every for point in line.points])
    made = [
        Panel(title, x_label, view.y_label, x_axis, _shared(view, views, y), series)
        for view in views
        for title, series in _series(view, named, by_group)
    ]
    legend = group_legend(named.values()) if by_group else run_legend(runs, {line.run for line in every})
    note = f"Cells: {next(iter(named.values()))}." if len(named) == 1 else ""
    return Drawn(tuple((each.title, panel.draw(each)) for each in made), legend, note)


def _group_names(groups: Iterable[SeriesKey]) -> dict[SeriesKey, str]:
    """Return the name of each group: the words in which the groups differ, or all words of a single group."""
    known = list(dict.fromkeys(groups))
    differing = [n for n, words in enumerate(zip(*known, strict=True)) if len(known) == 1 or len({*words}) > 1]
    return {group: ", ".join(group[n] for n in differing if group[n]) or "all cells" for group in known}


def _shared(view: View, views: Sequence[View], y: Callable[[list[float]], Axis]) -> Axis:
    same = [line for other in views if other.y_label == view.y_label for line in other.lines]
    return y([value for line in same for point in line.points for value in (point.low, point.high)])


def _series(view: View, named: Mapping[SeriesKey, str], by_group: bool) -> Iterator[tuple[str, tuple[Series, ...]]]:
    """Yield title and series of each panel of a view."""
    if by_group:
        if view.lines:
            places = {group: n for n, group in enumerate(named)}
            yield view.title, tuple(Series(places[one.group], named[one.group], one.points) for one in view.lines)
        return
    for group, name in named.items():
        series = tuple(Series(one.run, letter(one.run), one.points) for one in view.lines if one.group == group)
        if series:
            yield " · ".join(word for word in (view.title, name if len(named) > 1 else "") if word), series


def group_legend(groups: Iterable[str]) -> Legend:
    """Return the legend of a plot whose series are groups of cells. A single group needs none."""
    known = [*groups]
    return tuple((svg.swatch(n), "", name) for n, name in enumerate(known)) if len(known) > 1 else ()


def run_legend(runs: Sequence[Evidence], shown: Iterable[int]) -> Legend:
    """Return the legend of a plot whose series are runs. A single run needs none."""
    named = names.of_runs(runs)
    return tuple((svg.swatch(n), letter(n), named[n]) for n in sorted(shown)) if len(runs) > 1 else ()
