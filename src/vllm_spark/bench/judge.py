"""Judge an evidence file with everything that is known beside it: the run before, the recipe, the reported figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from vllm_spark.bench import comparison, evidence, profiles, verdict
from vllm_spark.bench.evidence import Run
from vllm_spark.bench.verdict import Statement, Verdict
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.recipe import loader


@dataclass(frozen=True, slots=True)
class Judged:
    """A run with its verdict. `recipe` is None for a server without one."""

    run: Run
    verdict: Verdict
    recipe: Document | None


def judge(file: Path, baseline: Path | None = None, recipe: str = "") -> Judged:
    """Return the judgement of a file.

    `baseline` is the run before; by default the newest comparable one in the same folder. `recipe` is the recipe of the
    forecast; by default the one that the run names. Raises RefusedError for a broken file or an unknown recipe.
    """
    run = evidence.load(file)
    before = evidence.load(baseline) if baseline else run_before(file, run)
    document = loader.load(recipe).document if recipe else _own_recipe(run)
    known = profiles.names().get(str(run.record["profile"].get("name")))
    reported = profiles.read(known, {}).figures if known else ()
    judged = verdict.verdict(run, before, document, reported)
    if document is None and (name := run.record["subject"]["recipe"]):
        missing = Statement("forecast", "unknown", f"{name} is not in recipes/; --recipe names another one")
        judged = replace(judged, statements=(*judged.statements, missing))
    return Judged(run, judged, document)


def run_before(file: Path, run: Run) -> Run | None:
    """Return the newest run beside a file that began before it, has its profile and is comparable; None without one."""
    candidates = [other for path in file.parent.glob("*.jsonl") if path != file and (other := _readable(path))]
    earlier = [
        other
        for other in candidates
        if other.record["started"] < run.record["started"]
        and other.record["profile"].get("name") == run.record["profile"].get("name")
        and comparison.comparable(other.record["key"], run.record["key"])
    ]
    return max(earlier, key=lambda other: other.record["started"], default=None)


def _own_recipe(run: Run) -> Document | None:
    """Return the recipe that a run names; None without one, and for a recipe of another site."""
    name = run.record["subject"]["recipe"]
    return loader.load(name).document if name in loader.names([paths.RECIPES]) else None


def _readable(path: Path) -> Run | None:
    """Return the run of a file; None for a file that is not evidence, which the operator did not name."""
    try:
        return evidence.load(path)
    except RefusedError:
        return None
