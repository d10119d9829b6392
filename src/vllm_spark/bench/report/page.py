"""The page of the report: one HTML document that needs nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from vllm_spark.bench import verdict as verdicts
from vllm_spark.bench.evidence import Evidence, oldest_first
from vllm_spark.bench.report import compared, facts, names, plots, table, text
from vllm_spark.bench.report.text import letter

HERE = Path(__file__).parent
# What a verdict says of the newest run; the page says it of each run.
GARBAGE = re.compile(rf"; {verdicts.GARBAGE} accepted in [^;.]*")
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


def page(
    runs: Sequence[Evidence],
    *,
    verdict: str | None = None,
    expected: Mapping[tuple[str, str], str] | None = None,
) -> str:
    """Return the report of one or more runs as HTML; the oldest run is A. `verdict` is one sentence.

    `expected` has the forecast of a figure in words, by cell and metric."""
    runs = oldest_first(runs)
    style = (HERE / "style.css").read_text(encoding="utf-8")
    columns = table.columns(runs)
    metrics = [metric for metric, _, _ in columns.shown]
    rows, found = table.rows(runs, metrics), compared.of_runs(runs)
    lines = compared.lines(runs, found, [row.id for row in rows])
    summaries = compared.summary(runs, lines)
    cells = names.of_cells([cell["cell"] for run in runs for cell in run.cells.values()])
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=_title(runs),
            verdict=_sentence(verdict, cells, runs) if verdict else _without_verdict(runs, summaries),
            judged=bool(verdict),
            tiles=compared.tiles(runs, found, expected or {}),
            letters=[letter(index) for index in range(len(runs))],
            runs=[_summary(*each) for each in zip(runs, names.of_runs(runs), strict=True)],
            differences=facts.differences(runs),
            cautions=[*names.cautions(runs)],
            summaries=summaries,
            lines=lines,
            starts=facts.starts(runs),
            subject=facts.subject(runs),
            columns=columns,
            rows=rows,
            cells=cells,
            warnings=table.warnings(runs),
            left_out=len({cell["cell"]["id"] for run in runs for cell in run.cells.values()}) - len(rows),
            plots=plots.drawn(runs),
            style=Markup(style),  # noqa: S704  the file beside this one
            policy=Markup(policy(style)),  # noqa: S704  base64 and constant words
        )
    )


def _sentence(verdict: str, cells: Mapping[str, str], runs: Sequence[Evidence]) -> str:
    """Return the verdict with the names that the page has for cells, figures and the other run."""
    for id_ in sorted(cells, key=len, reverse=True):
        verdict = verdict.replace(id_, cells[id_])
    for metric in table.COLUMNS:
        verdict = verdict.replace(metric, metric.replace("_", " "))
    if len(runs) == 2:  # noqa: PLR2004  with more runs it is not clear which one is the other one
        verdict = verdict.replace("the other run", letter(0))
    if len(runs) > 1:
        verdict = GARBAGE.sub("", verdict)
    return " ".join([_capital(text.plain(verdict)), *(_garbage(runs) if len(runs) > 1 else [])])


def _without_verdict(runs: Sequence[Evidence], summaries: Sequence[str]) -> str:
    """Return what is known without a verdict: the comparisons, and accepted garbage."""
    return " ".join([*(summaries or [UNKNOWN_VERDICT]), *_garbage(runs)])


def _garbage(runs: Sequence[Evidence]) -> list[str]:
    """Return a sentence on the runs whose garbage was accepted, if any."""
    found = [(letter(n), cells) for n, run in enumerate(runs) if (cells := verdicts.accepted(run))]
    named = ", ".join(f"{cells} of {name}" if len(runs) > 1 else cells for name, cells in found)
    return [f"Garbage accepted in {named}."] if named else []


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _title(runs: Sequence[Evidence]) -> str:
    subjects = [run.run["subject"] for run in runs]
    titles = dict.fromkeys(text.plain(each["deployment"] or each["served_name"] or "unknown") for each in subjects)
    return ", ".join(titles)


def _summary(run: Evidence, name: str) -> dict[str, str]:
    states = [cell["state"] for cell in run.cells.values()]
    counts = [f"{states.count(state)} {state}" for state in ("measured", "failed", "worthless") if state in states]
    cells = f"{len(states)} cell{'' if len(states) == 1 else 's'}"
    return {
        "name": name,
        "model": text.plain(run.run["key"]["model"] or "unknown model"),
        "profile": text.plain(run.run["profile"].get("name") or "unknown"),
        "began": names.began(run),
        "duration": text.duration(run.seconds),
        "cells": f"{cells}: {', '.join(counts)}" if counts else "no cells",
        "end": "" if run.end else "interrupted",
    }
