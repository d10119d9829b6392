"""`vllm-spark bench report`: evidence files as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_spark.bench import judge
from vllm_spark.bench.evidence import BENCH_EVIDENCE, load
from vllm_spark.bench.judge import Judged
from vllm_spark.bench.report import marks, page
from vllm_spark.bench.report.material import Forecast
from vllm_spark.core.refusal import RefusedError
from vllm_spark.sizing import forecast
from vllm_spark.sizing.forecast import ForecastRequest


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("report", help="write the report of one or more runs as one HTML file")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="evidence file; the first one is run A")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.html", help="default: the first FILE as .html")
    parser.add_argument("--recipe", default="", help="recipe of the forecast; default: the one that run A names")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the report and print its path. Raises RefusedError if a file is not evidence, or there are too many."""
    if len(args.files) > marks.COUNT:
        raise RefusedError(
            [
                BENCH_EVIDENCE(
                    what=f"{len(args.files)} evidence files",
                    expected=f"{marks.COUNT} or fewer, which a reader can distinguish without colour",
                    fix="name fewer files.",
                )
            ]
        )
    first, *others = args.files
    judged = judge.judge(first, others[0] if others else None, args.recipe)
    sentence = judged.verdict.sentence if judged.verdict.statements or judged.verdict.unusable else None
    output: Path = args.output or first.with_suffix(".html")
    runs = [judged.run, *map(load, others)]
    output.write_text(page.page(runs, verdict=sentence, forecast=_forecast(judged)), encoding="utf-8")
    print(output)
    return 0


def _forecast(judged: Judged) -> Forecast | None:
    """Return the forecast's terms beside the first cell of one stream without depth; None without such a cell."""
    predicted = forecast.predicted(judged.recipe, ForecastRequest()) if judged.recipe else None
    cells = [
        cell["cell"]["id"]
        for cell in judged.run.cells
        if "step" in cell["figures"] and cell["cell"]["streams"] == 1 and not cell["cell"]["depth"]
    ]
    if predicted is None or not cells:
        return None
    return Forecast(cells[0], {cause: 1000 * seconds for cause, seconds in predicted.slow.seconds.items()})
