"""The table of choose-a-recipe.md that says what a second Spark brings, from forecasts and the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lab.forecast import measured_rows
from lab.pages import where_to_begin
from lab.pages.markdown import table
from vllm_spark.core.types import Document
from vllm_spark.recipe import known_issues
from vllm_spark.sizing import constants, forecast, pairs, tensor_parallel
from vllm_spark.sizing.forecast import ForecastRequest
from vllm_spark.sizing.uses import USES

BEGIN = "<!-- `make docs` writes the lines up to the next comment from forecasts of recipes/*.yml. -->"
COLUMNS = ("for", "recipe of one Spark", "as one server, forecast", "measured", "a server on each")

# A dense model gains most from a second Spark, and no use of README's first table has one on one Spark.
DENSE = "gemma-4-31b-awq-mtp"


def page(text: str) -> str:
    """Return choose-a-recipe.md with the table of today. Raises ValueError if it has no place for it."""
    return where_to_begin.placed(text, BEGIN, written(where_to_begin.pinned()))


def written(documents: Sequence[Document]) -> str:
    """Return the table."""
    return table(COLUMNS, [*_uses(documents), *_dense(documents), _too_large(documents)])


def compared_recipes(documents: Sequence[Document]) -> list[tuple[str, int]]:
    """Return recipe and streams of each row that compares one Spark with two."""
    return [*_best(documents), *((one["name"], 1) for one in documents if one["name"] == DENSE)]


def _best(documents: Sequence[Document]) -> dict[tuple[str, int], list[str]]:
    rows: dict[tuple[str, int], list[str]] = {}
    for use in USES:
        best = where_to_begin.best(documents, use, nodes=1)
        if best:
            rows.setdefault((best[1], use.streams), []).append(use.name)
    return rows


def _uses(documents: Sequence[Document]) -> Iterator[list[str]]:
    by_name = {document["name"]: document for document in documents}
    for (name, streams), names in _best(documents).items():
        yield _row(", ".join(names), by_name[name], streams)


def _dense(documents: Sequence[Document]) -> Iterator[list[str]]:
    yield from (_row("a dense model", one, 1) for one in documents if one["name"] == DENSE)


def _row(what: str, recipe: Document, streams: int) -> list[str]:
    pair = as_pair(recipe)
    one, two = (forecast.predicted(one, ForecastRequest(streams=streams)) for one in (recipe, pair))
    gain = "not known"
    if issues := refused_by(pair):
        gain = f"refused (`{issues[0]}`)"
    elif pairs.unranked(pair, constants.constants_of({})):
        gain = "not known before two all-reduces are timed"
    elif one and two:
        ratio = two.slow.served.total / one.slow.served.total if streams > 1 else one.gain(two)
        gain = f"{ratio:.1f} times as fast"
    seen = ", ".join(
        f"{ratio:.1f} ({operator})" for operator, ratio in measured(recipe["model"]["architecture"], streams)
    )
    return [what, f"`{recipe['name']}`", gain, seen or "-", "twice the users"]


def measured(architecture: str, streams: int) -> list[tuple[str, float]]:
    """Return who measured -> how many times as fast two Sparks were, where one and two were measured in the same way.

    The name of an owner who measured without a drafter says so, because every recipe of the table has one.
    """
    found: dict[tuple[str, ...], dict[int, float]] = {}
    for entry in measured_rows.configurations(*measured_rows.FITTED, *measured_rows.NOT_FITTED):
        for row in entry.rows:
            speed = row.decode or row.total
            if entry.architecture == architecture and row.streams == streams and speed and not entry.eager:
                key = (entry.operator, entry.model, str(entry.drafted), str((row.prompt, row.output, bool(row.decode))))
                found.setdefault(key, {})[entry.tensor_parallel] = speed
    gains: dict[str, list[float]] = {}
    for (operator, _, drafted, _), speeds in found.items():
        if {1, 2} <= set(speeds):
            who = operator if drafted != "0" else f"{operator}, no drafter"
            gains.setdefault(who, []).append(speeds[2] / speeds[1])
    return [(who, sum(ratios) / len(ratios)) for who, ratios in sorted(gains.items())]


def as_pair(recipe: Document) -> Document:
    """Return the recipe of one Spark as one server of two."""
    return tensor_parallel.on_ranks(recipe, 2, 2)


def refused_by(recipe: Document) -> list[str]:
    """Return the ids of the known issues for which `plan` refuses a recipe."""
    issues = known_issues.matching_issues(known_issues.of_closed(recipe))
    return [issue.id for issue in issues if issue.level == "refuse"]


def _too_large(documents: Sequence[Document]) -> list[str]:
    names = ", ".join(f"`{one['name']}`" for one in documents if is_too_large(one))
    return ["a model that one Spark does not hold", "-", names, "-", "-"]


def is_too_large(recipe: Document) -> bool:
    """Return whether a recipe of several Sparks has weights that one Spark does not hold."""
    return recipe["topology"]["nodes"] > 1 and not pairs.held_by_one(recipe)
