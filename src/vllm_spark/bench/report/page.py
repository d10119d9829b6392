"""The page of the report: one HTML document that needs nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.report import plots, table, text
from vllm_spark.bench.report.material import Forecast, Material
from vllm_spark.bench.report.reading import letter
from vllm_spark.bench.report.sweep import run_name

HERE = Path(__file__).parent
UNKNOWN_VERDICT = "No verdict: these figures were not compared with an earlier run, a forecast or expected figures."


@lru_cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else text.plain(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    return environment


def _breakable(words: str) -> Markup:
    """Return a name that may be broken after `_`, `=` and `/`."""
    return Markup("").join(
        escape(part) + (Markup("<wbr>") if part in "_=/" else "") for part in re.split("([_=/])", words) if part
    )


def policy(style: str) -> str:
    """Return the Content-Security-Policy that allows this style sheet and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def page(runs: Sequence[Evidence], *, verdict: str | None = None, forecast: Forecast | None = None) -> str:
    """Return the report of one or more runs as HTML. The first run is A. `verdict` is one sentence."""
    material = Material(tuple(runs), forecast)
    drawn = [(plot, made) for plot in plots.registered() if (made := plot.draw(material))]
    style = (HERE / "style.css").read_text(encoding="utf-8")
    rows = table.rows(runs)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=_title(runs),
            verdict=_capital(text.plain(verdict)) if verdict else UNKNOWN_VERDICT,
            judged=bool(verdict),
            runs=[_summary(index, run) for index, run in enumerate(runs)],
            facts=table.facts(runs),
            columns=table.columns(runs),
            rows=rows,
            left_out=len({cell["cell"]["id"] for run in runs for cell in run.cells.values()}) - len(rows),
            plots=drawn,
            style=Markup(style),  # noqa: S704  the file beside this one
            policy=Markup(policy(style)),  # noqa: S704  base64 and constant words
        )
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _title(runs: Sequence[Evidence]) -> str:
    subjects = [run.run["subject"] for run in runs]
    names = dict.fromkeys(text.plain(each["deployment"] or each["served_name"] or "unknown") for each in subjects)
    return ", ".join(names)


def _summary(index: int, run: Evidence) -> dict[str, str]:
    states = [cell["state"] for cell in run.cells.values()]
    counts = [f"{states.count(state)} {state}" for state in ("measured", "failed", "worthless") if state in states]
    cells = f"{len(states)} cell{'' if len(states) == 1 else 's'}"
    return {
        "letter": letter(index),
        "name": run_name(run),
        "model": text.plain(run.run["key"]["model"] or "unknown model"),
        "profile": text.plain(run.run["profile"].get("name") or "unknown"),
        "started": text.plain(run.run["started"]).replace("T", " ")[:16],
        "duration": text.duration(run.seconds),
        "cells": f"{cells}: {', '.join(counts)}" if counts else "no cells",
        "end": "" if run.end else "interrupted",
    }
