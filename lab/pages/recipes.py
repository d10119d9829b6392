"""docs/reference/recipes.md: the catalogue as a table, and a section per recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lab.pages import recipe_evidence
from lab.pages.markdown import table
from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.recipe import known_issues, licences, loader, lockfile, published_image
from vllm_spark.recipe.loader import Recipe
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import catalogue
from vllm_spark.sizing.catalogue import Entry

HEAD = """\
# Recipes

`make docs` writes this page from `recipes/*.yml`; do not edit it. `vllm-spark recipes` prints the table with your
lock file. Memory is the peak of a start on each Spark. Speeds are for one stream: the forecast is explained in
[prediction.md](prediction.md), the reported speed is from the recipe's sources. With a drafter the forecast goes from
the kind of text with the lowest acceptance to that with the highest; `vllm-spark plan RECIPE` names them. A recipe that
is not pinned needs `vllm-spark lock` first. A recipe that is kept for a field report is its system of that
day: `vllm-spark init`, README and the advice of `plan` name one that is better today.

A recipe with evidence of the bench has a table: decode and the time to the first chunk of the first cell with one
stream, and the prefill of the longest prompt. What differs from the recipe on a Spark stands above it. Figures that
were measured on another GPU say nothing about the speed of a Spark. [bench.md](bench.md) defines the figures.
"""


PUBLISHED = {"publisher": "publisher", "differs": "what differs", "unverified": "what the toolkit cannot verify"}


def text() -> str:
    """Return the page."""
    loaded = [loader.load(name) for name in sorted(loader.names([paths.RECIPES]))]
    entries = [catalogue.entry(recipe.document, Lock()) for recipe in loaded]
    sections = ["\n".join(_section(*pair)).rstrip() + "\n" for pair in zip(loaded, entries, strict=True)]
    return "\n".join([HEAD, _table(entries), *sections])


def _table(entries: Sequence[Entry]) -> str:
    rows = [[f"[{row[0]}](#{row[0].replace('.', '')})", *row[1:]] for row in map(catalogue.cells, entries)]
    return table(catalogue.COLUMNS, rows) + "\n"


def _section(recipe: Recipe, entry: Entry) -> Iterator[str]:
    document = recipe.document
    model = document["model"]
    yield from (f"## {entry.name}", "", f"{entry.summary}.", "")
    yield f"- Model: {model['repository']} at {model.get('revision', 'a commit that `lock` resolves')}"
    if "drafter" in document:
        drafter = document["drafter"]
        yield f"- Drafter: {drafter['repository']}, {drafter['speculative_tokens']} tokens ahead"
    yield from (f"- L{line[1:]}" for line in licences.lines(document))
    yield f"- Image: {lockfile.locked_name(document)}{_additions(document)}"
    for key, text in document["image"].get("published", {}).items():
        yield f"- {published_image.LABEL.capitalize()}, {PUBLISHED[key]}: {text}"
    if entry.kept_for:
        yield f"- Kept for {entry.kept_for}, whose system this is: the toolkit proposes another recipe."
    yield from (f"- Source: {source}" for source in document.get("sources", []))
    yield from (f"- Differs from its source: {text}" for text in document.get("corrections", []))
    own_issues = document.get("known_issues", [])
    yield from (f"- Note: {issue['text']}" for issue in own_issues)
    own_ids = {issue["id"] for issue in own_issues}
    for issue in known_issues.matching_issues(known_issues.of_closed(document)):
        if issue.id not in own_ids:
            yield f"- Note: {issue.what} ({issue.id})"
    if entry.open:
        yield f"- `lock` must resolve: {', '.join(entry.open)}"
    yield from recipe_evidence.lines(recipe)


def _additions(document: Document) -> str:
    """Return what the derived image adds to the base image, or an empty text."""
    derive = document["image"].get("derive", {})
    additions = [*derive.get("pip", []), *(["Python sources over its own"] if "overlay" in derive else [])]
    additions += [file["path"].rpartition("/")[2] for file in derive.get("files", [])]
    additions += [patch["path"].rpartition("/")[2] for patch in document.get("patches", [])]
    return f", with {', '.join(additions)}" if additions else ""
