"""The evidence of a recipe on its page: what was measured where, and its report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lab.pages.markdown import table
from vllm_spark.bench import compare, recipe_evidence
from vllm_spark.bench.evidence import Evidence
from vllm_spark.bench.recipe_evidence import EvidenceGroup
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.node.bench.records import CellRecord
from vllm_spark.recipe.loader import Recipe

COLUMNS = ("profile", "date", "GPU", "vLLM", "decode tok/s", "first chunk ms", "prefill tok/s (prompt)")
UNKNOWN = "?"
# From docs/reference to the root of the repository.
UP = "../.."
# The reports of the catalogue's evidence, by the place of its files below recipes/evidence.
REPORTS = "lab/evidence"


def lines(recipe: Recipe, folder: Path = paths.RECIPES) -> Iterator[str]:
    """Yield the lines of a recipe's evidence. Raises RefusedError for a file that is not evidence."""
    for entry in recipe.document.get("evidence", []):
        if "bench" not in entry:
            yield f"- Evidence: {entry['date']}, {entry['hosts']} ({_link(entry)})"
    for group in recipe_evidence.groups(recipe, folder):
        yield from _group(group)


def _group(group: EvidenceGroup) -> Iterator[str]:
    yield f"- Evidence: {len(group.runs)} {'run' if len(group.runs) == 1 else 'runs'} ([report]({UP}/{report(group)}))"
    if group.differs:
        yield "- These figures are not those of this recipe on a Spark:"
        yield from (f"  - {part}: {text}" for part, text in group.differs.items())
    yield ""
    yield table(COLUMNS, map(_row, group.runs))
    yield ""


def report(group: EvidenceGroup) -> str:
    """Return the path of a group's report: what the entry names, or FOLDER/SERVER.html of lab/evidence for the files
    recipes/evidence/FOLDER/SERVER.PROFILE.jsonl."""
    folder, _, name = group.names[0].removeprefix("recipes/evidence/").rpartition("/")
    return group.report or f"{REPORTS}/{folder}/{name.partition('.')[0]}.html"


def _row(run: Evidence) -> tuple[str, ...]:
    single = [cell for cell in run.cells.values() if cell["cell"]["streams"] == 1 and not compare.worthless(cell)]
    first = next((cell for cell in single if "decode" in cell["figures"]), None)
    longest = max((cell for cell in single if "prefill" in cell["figures"]), key=_context, default=None)
    record = run.run
    return (
        record["profile"].get("name", UNKNOWN),
        record["started"][:10],
        ", ".join(recipe_evidence.gpus(run)),
        record["subject"]["engine_version"] or UNKNOWN,
        _figure(first, "decode", 1),
        _figure(first, "first_chunk", 0),
        f"{_figure(longest, 'prefill', 0)} ({_context(longest)})" if longest else UNKNOWN,
    )


def _context(cell: CellRecord) -> int:
    return cell["cell"]["prompt"] + cell["cell"]["depth"]


def _figure(cell: CellRecord | None, metric: str, digits: int) -> str:
    figure = cell["figures"].get(metric) if cell else None
    return f"{figure['median']:.{digits}f}" if figure else UNKNOWN


def _link(entry: Document) -> str:
    return f"[{entry['report'].rpartition('/')[2]}]({UP}/{entry['report']})"
