"""What the evidence of a folder says about a recipe on some Sparks, for its forecast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from statistics import median

from vllm_spark.bench import compare, evidence, key, verdict
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core.types import Document
from vllm_spark.core.units import GIB
from vllm_spark.node.bench.faults import CAPPED_GPU as GPU
from vllm_spark.node.bench.records import PROTOCOL, CellRecord
from vllm_spark.sizing import forecast, request_limits
from vllm_spark.sizing.acceptance import Share
from vllm_spark.sizing.constants import Constants
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.sizing.measured import FARTHEST, Measured

# A shorter prompt's time to the first token is mostly network and start of the request.
LEAST_PROMPT = 1024
SPEED, FIRST = "decode", "first_token"


@dataclass(frozen=True)
class Measurements:
    """The evidence of a folder. `known` are the constants of the forecast that it is compared with."""

    folder: Path
    known: Constants

    @cached_property
    def runs(self) -> list[Evidence]:
        return evidence.oldest_first(verdict.readable(self.folder))

    def of(self, hosts: Sequence[str], recipe: Document) -> Measured | None:
        """Return what was measured of a recipe on these hosts, the head first; None if nothing was.

        It is of the newest run of this recipe and of those that are comparable with it.
        """
        runs = [run for run in self.runs if _of(run, hosts, recipe)]
        runs = [run for run in runs if key.comparable(run, runs[-1])]
        cells = {cell["cell"]["id"]: cell for run in runs for cell in run.cells.values() if not compare.worthless(cell)}
        if not cells:
            return None
        plain = [cell for cell in cells.values() if not cell["cell"]["sampling"].get("temperature")]
        own = Measured(tuple(_acceptance(recipe, plain, ",".join(hosts))), _loading_peak(cells.values()))
        same = [cell for cell in plain if not cell["cell"]["server"]]
        ratios = {SPEED: list[float](), FIRST: list[float]()}
        for name, ratio in (pair for cell in same for pair in self._ratios(recipe, own, cell)):
            ratios[name].append(ratio)
        speed, first = (_factor(found) for found in ratios.values())
        return replace(own, speed=speed, first_token=first, lines=tuple(_lines(same, runs[-1], speed, first, own)))

    def _ratios(self, recipe: Document, own: Measured, record: CellRecord) -> Iterator[tuple[str, float]]:
        """Yield measured to forecast: the decode of a cell, and the first token of a long prompt."""
        cell, figures = record["cell"], record["figures"]
        prompt, streams = cell["depth"] + cell["prompt"], cell["streams"]
        if request_limits.at_once(recipe, streams) < streams:
            return
        for metric, context in ((SPEED, prompt + cell["output"] // 2), (FIRST, prompt)):
            if metric not in figures or (metric == FIRST and prompt < LEAST_PROMPT):
                continue
            found = forecast.predicted(recipe, ForecastRequest(context, streams), self.known, own=own)
            speed = found.on(cell["corpus"]) if found else None
            if found and speed:
                measured = float(figures[metric]["median"])
                yield metric, measured / (speed.tokens_per_s if metric == SPEED else 1000 * found.first_token_s)


def _factor(ratios: Sequence[float]) -> float | None:
    """Return the median of measured to forecast; None without any, and for one that no Spark has."""
    factor = median(ratios) if ratios else 0.0
    return factor if 1 / FARTHEST <= factor <= FARTHEST else None


def _of(run: Evidence, hosts: Sequence[str], recipe: Document) -> bool:
    """Return whether a run is one of the recipe as it is, on these Sparks and under this protocol."""
    known, model = run.run["key"], recipe["model"]
    wanted = {
        "hosts": ",".join(hosts),
        "commit": model.get("revision", ""),
        "layout": key.layout(model),
        "topology": key.topology(recipe),
    }
    return (
        run.run["subject"]["recipe"] == recipe["name"]
        and known["protocol"].partition("-")[0] == str(PROTOCOL)
        and all(GPU in host.get("gpu", GPU) for host in run.run["host"].values())
        and all(value in ("", dict(known)[name]) for name, value in wanted.items())
    )


def _acceptance(recipe: Document, cells: Iterable[CellRecord], hosts: str) -> Iterator[Share]:
    """Yield the acceptance of the drafter by kind of text and number of tokens, of the cells with one stream."""
    for record in cells if "drafter" in recipe else ():
        cell, figures = record["cell"], record["figures"]
        if "acceptance" in figures and cell["streams"] == 1:
            tokens = int(cell["server"].get("speculative_tokens", recipe["drafter"]["speculative_tokens"]))
            yield Share(cell["corpus"], tokens, round(float(figures["acceptance"]["median"]), 4), hosts)


def _loading_peak(cells: Iterable[CellRecord]) -> int:
    """Return the largest memory of a start in bytes, above that before it (the profile `start`); 0 if unknown."""
    starts = [record["figures"] for record in cells if "start" in record["cell"]["server"]]
    return int(GIB * max((float(figures["memory"]["median"]) for figures in starts if "memory" in figures), default=0))


def _lines(
    cells: Sequence[CellRecord], run: Evidence, speed: float | None, first: float | None, own: Measured
) -> Iterator[str]:
    """Yield the decode of one stream on each kind of text at its shortest context, and the factors of the forecast."""
    shown: dict[str, float] = {}
    for record in sorted(cells, key=lambda one: one["cell"]["depth"] + one["cell"]["prompt"]):
        if SPEED in record["figures"] and record["cell"]["streams"] == 1:
            shown.setdefault(record["cell"]["corpus"], float(record["figures"][SPEED]["median"]))
    date = f"{datetime.fromisoformat(run.run['started']):%d %B %Y}".lstrip("0")
    if shown:
        figures = ", ".join(f"{value:.1f} tok/s on {text}" for text, value in shown.items())
        factors = f"speed x {speed or 1:.2f}, first token x {first or 1:.2f}"
        yield f"measured here: {figures} (bench of {date}); the forecast has its factors: {factors}"
    if own.loading_peak:
        yield f"measured here: the peak of loading (bench of {date})"
