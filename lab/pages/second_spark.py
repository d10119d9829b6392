"""The table of README.md that says what a second Spark brings, from forecasts and the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lab.forecast import measured_rows
from lab.pages import where_to_begin
from lab.pages.markdown import table
from vllm_spark.core.types import Document
from vllm_spark.sizing import forecast, memory, reference_spark
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.sizing.prediction import Prediction
from vllm_spark.sizing.uses import USES

BEGIN = "<!-- `make docs` writes the lines up to the next comment from forecasts of recipes/*.yml. -->"
COLUMNS = ("for", "recipe of one Spark", "as one server, forecast", "measured", "a server on each")

FOLDERS = (
    measured_rows.FOLDER,
    measured_rows.HELD_BACK,
    measured_rows.UNSEEN,
    *measured_rows.GATHERED_HALVES.values(),
)

# A dense model gains most from a second Spark, and no use of README's first table has one on one Spark.
DENSE = "gemma-4-31b-awq-mtp"


def readme(text: str) -> str:
    """Return README.md with the table of today. Raises ValueError if it has no place for it."""
    return where_to_begin.placed(text, BEGIN, written(where_to_begin.pinned()))


def written(documents: Sequence[Document]) -> str:
    """Return the table."""
    return table(COLUMNS, [*_uses(documents), *_dense(documents), _too_large(documents)])


def _uses(documents: Sequence[Document]) -> Iterator[list[str]]:
    rows: dict[tuple[str, int], list[str]] = {}
    for use in USES:
        best = where_to_begin.best(documents, use, nodes=1)
        if best:
            rows.setdefault((best[1], use.streams), []).append(use.name)
    by_name = {document["name"]: document for document in documents}
    for (name, streams), names in rows.items():
        yield _row(", ".join(names), by_name[name], streams)


def _dense(documents: Sequence[Document]) -> Iterator[list[str]]:
    yield from (_row("a dense model", one, 1) for one in documents if one["name"] == DENSE)


def _row(what: str, recipe: Document, streams: int) -> list[str]:
    one, two = (_predicted(recipe, nodes, streams) for nodes in (1, 2))
    gain = "not known"
    if one and two:
        ratio = two.slow.served.total / one.slow.served.total if streams > 1 else one.gain(two)
        gain = f"{ratio:.1f} times as fast"
    seen = ", ".join(
        f"{ratio:.1f} ({operator})" for operator, ratio in measured(recipe["model"]["architecture"], streams)
    )
    return [what, f"`{recipe['name']}`", gain, seen or "-", "twice the users"]


def measured(architecture: str, streams: int) -> list[tuple[str, float]]:
    """Return operator -> how many times as fast two Sparks were, where he measured one and two in the same way."""
    found: dict[tuple[str, ...], dict[int, float]] = {}
    for entry in (one for folder in FOLDERS for one in measured_rows.configurations(folder)):
        for row in entry.rows:
            speed = row.decode or row.total
            if entry.architecture == architecture and row.streams == streams and speed and not entry.eager:
                key = (entry.operator, entry.model, str(entry.drafted), str((row.prompt, row.output, bool(row.decode))))
                found.setdefault(key, {})[entry.tensor_parallel] = speed
    gains: dict[str, list[float]] = {}
    for (operator, *_), speeds in found.items():
        if {1, 2} <= set(speeds):
            gains.setdefault(operator, []).append(speeds[2] / speeds[1])
    return [(operator, sum(ratios) / len(ratios)) for operator, ratios in sorted(gains.items())]


def _predicted(recipe: Document, nodes: int, streams: int) -> Prediction | None:
    topology = {**recipe["topology"], "nodes": nodes, "tensor_parallel": nodes}
    return forecast.predicted({**recipe, "topology": topology}, ForecastRequest(streams=streams))


def _too_large(documents: Sequence[Document]) -> list[str]:
    names = ", ".join(f"`{one['name']}`" for one in documents if is_too_large(one))
    return ["a model that one Spark does not hold", "-", names, "-", "-"]


def is_too_large(recipe: Document) -> bool:
    """Return whether a recipe of several Sparks has weights that the largest share of one Spark does not hold."""
    model = memory.model_of(recipe)
    if recipe["topology"]["nodes"] == 1:
        return False
    size = sum(model.loaded_bytes(1).values()) if model else recipe["model"].get("size_bytes", 0)
    return bool(size > forecast.LARGEST_SHARE * reference_spark.MEMORY["total"])
