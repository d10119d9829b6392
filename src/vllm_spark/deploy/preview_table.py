"""The previews of many hosts as one table, with what is exceptional below it. Pure.

A text that several hosts have is shown once, in the words of the first of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from rich.table import Table

from vllm_spark.core import table as text_table
from vllm_spark.core.units import GB, gib
from vllm_spark.deploy.preview import Preview
from vllm_spark.sizing.forecast import Forecast

COLUMNS = ("host", "deployment", "recipe", "plan", "memory", "speed", "download", "a deploy", "notes")
TABLE_WIDTH = 180
NOTHING = "—"
# So many hosts of a group are named.
MOST = 4
# Each host has its own lines in a run of up to so many.
DETAILED = 2


def table(previews: Mapping[str, Preview]) -> str:
    """Return a row per host."""
    grid = Table(*COLUMNS)
    for host, preview in previews.items():
        grid.add_row(*_cells(host, preview, previews))
    return text_table.text(grid, TABLE_WIDTH)


def details(preview: Preview) -> list[str]:
    """Return everything about one host."""
    return [*preview.lines, *preview.forecast_lines]


def short(host: str, previews: Mapping[str, Preview]) -> list[str]:
    """Return what a person needs before a deploy that follows at once and tells its changes itself: what happens to the
    server, what stops for it, and whether it fits. A Spark that stays as it is has one line."""
    preview = previews[host]
    if not (preview.spec and preview.plan):
        return preview.lines
    stops = tuple(preview.plan.stop_units)
    lines = [preview.lines[0], *(line for line in preview.lines[1:] if stops and line.startswith(stops))]
    cells = dict(zip(COLUMNS, _cells(host, preview, previews), strict=True))
    if preview.plan.settled and not (preview.forecast and preview.forecast.download_bytes):
        return lines
    parts = [f"{cells['deployment']}: {cells['plan']}", f"memory {cells['memory']}", cells["speed"]]
    lines.append(", ".join(part for part in (*parts, f"download {cells['download']}") if not part.endswith(NOTHING)))
    return [*lines, *_forecast_notes(preview.forecast)]


def notes(previews: Mapping[str, Preview]) -> list[str]:
    """Return what the rows do not show: the lines about changes, open issues, and the notes of a forecast."""
    return grouped(previews, {host: _notes(preview) for host, preview in previews.items()})


def refusals(previews: Mapping[str, Preview]) -> list[str]:
    """Return every reason against a deploy."""
    return grouped(previews, {host: list(map(str, preview.refusals)) for host, preview in previews.items()})


def summary(previews: Mapping[str, Preview]) -> str:
    """Return the number of hosts by what a deploy would do, and the deployments that it would refuse."""
    changes = Counter(_change(preview) for preview in previews.values())
    refused = list(
        dict.fromkeys(name for preview in previews.values() if preview.refusals and (name := _name(preview)))
    )
    parts = [f"{number} {what}" for what, number in changes.items() if what != NOTHING]
    parts += [f"no-go: {_listed(refused)}"] if refused else []
    return f"{len(previews)} hosts: {'; '.join(parts) or 'no deployment is active'}. -v shows the details of each host"


def grouped(previews: Mapping[str, Preview], texts: Mapping[str, Iterable[str]]) -> list[str]:
    """Return each text once with the hosts that have it. Texts that differ only in the names of the host and of its
    deployment are the same."""
    groups: dict[str, dict[str, str]] = {}
    for host, own in texts.items():
        names = [re.escape(name) for name in (host, _name(previews[host])) if name]
        named = re.compile(rf"(?<![\w.-])(?:{'|'.join(names)})(?![\w-])")
        for text in own:
            groups.setdefault(named.sub("\0", text), {}).setdefault(host, text)
    return [_headed(group) for group in groups.values()]


def _headed(group: Mapping[str, str]) -> str:
    host, text = next(iter(group.items()))
    others = [name for name in group if name != host]
    same = f" (the same on {_listed(others)})" if others else ""
    return f"{host}  {text.removeprefix(f'{host}: ').removeprefix(f'{host} ')}{same}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _notes(preview: Preview) -> list[str]:
    # The first line is the change, which the row shows.
    own = preview.lines[1:] if preview.spec else preview.lines
    return [*own, *_forecast_notes(preview.forecast)]


def _forecast_notes(forecast: Forecast | None) -> Iterator[str]:
    if forecast:
        yield from forecast.notes
        yield from (f"better: {line}" for line in forecast.better)


def _cells(host: str, preview: Preview, previews: Mapping[str, Preview]) -> tuple[str, ...]:
    spec = preview.spec
    if spec is None:
        return host, *[NOTHING] * (len(COLUMNS) - 2), str(len(preview.lines))
    forecast = previews[spec.deployment.hosts[0]].forecast
    rank = f", rank {spec.rank}" if len(spec.deployment.hosts) > 1 else ""
    return (
        host,
        f"{spec.deployment.name}{rank}",
        str(spec.recipe["name"]),
        forecast.verdict if forecast else NOTHING,
        _memory(host, forecast),
        str(forecast.prediction).partition(" (")[0] if forecast and forecast.prediction else NOTHING,
        _download(forecast),
        _change(preview),
        str(len(_notes(preview))),
    )


def _memory(host: str, forecast: Forecast | None) -> str:
    fit = forecast.fits.get(host) if forecast else None
    return f"{gib(fit.reserved)} of {gib(fit.available)}" if fit else NOTHING


def _download(forecast: Forecast | None) -> str:
    if forecast is None or not forecast.download_known:
        return "unknown"
    return f"{forecast.download_bytes / GB:.1f} GB" if forecast.download_bytes else "nothing"


def _change(preview: Preview) -> str:
    if preview.spec is None:
        return NOTHING
    if preview.plan is None:
        return "would refuse"
    return "would change nothing" if preview.plan.settled else f"would be {preview.plan.state}"


def _name(preview: Preview) -> str:
    return preview.spec.deployment.name if preview.spec else ""
