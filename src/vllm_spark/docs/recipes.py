"""docs/reference/recipes.md: the catalogue as a table, and a section per recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vllm_spark.core import paths
from vllm_spark.core.types import Document
from vllm_spark.docs.markdown import table
from vllm_spark.recipe import known_issues, loader, lockfile
from vllm_spark.recipe.lockfile import Lock
from vllm_spark.sizing import catalogue
from vllm_spark.sizing.catalogue import Entry

HEAD = """\
# Recipes

`vllm-spark docs` writes this page from `recipes/*.yml`; do not edit it. `vllm-spark recipes` prints the table with your
lock file. Memory is the peak of a start on each Spark. Speeds are for one stream: the forecast is explained in
[prediction.md](prediction.md), the reported speed is from the recipe's sources. A recipe that is not pinned needs
`ansible-playbook lock.yml` first.
"""


def text() -> str:
    """Return the page."""
    documents = [loader.load(name).document for name in sorted(loader.names([paths.RECIPES]))]
    entries = [catalogue.entry(document, Lock()) for document in documents]
    sections = ["\n".join(_section(*pair)) + "\n" for pair in zip(documents, entries, strict=True)]
    return "\n".join([HEAD, _table(entries), *sections])


def _table(entries: Sequence[Entry]) -> str:
    rows = [[f"[{row[0]}](#{row[0].replace('.', '')})", *row[1:]] for row in map(catalogue.cells, entries)]
    return table(catalogue.COLUMNS, rows) + "\n"


def _section(document: Document, entry: Entry) -> Iterator[str]:
    model = document["model"]
    yield from (f"## {entry.name}", "", f"{entry.summary}.", "")
    yield f"- Model: {model['repository']} at {model.get('revision', 'a commit that `lock` resolves')}"
    if "drafter" in document:
        drafter = document["drafter"]
        yield f"- Drafter: {drafter['repository']}, {drafter['speculative_tokens']} tokens ahead"
    yield f"- Image: {lockfile.locked_name(document)}{_additions(document)}"
    yield from (f"- Source: {source}" for source in document.get("sources", []))
    yield from (f"- Differs from its source: {text}" for text in document.get("corrections", []))
    own_issues = document.get("known_issues", [])
    yield from (f"- Note: {issue['text']}" for issue in own_issues)
    own_ids = {issue["id"] for issue in own_issues}
    for issue in known_issues.matching_issues(known_issues.Subject(document)):
        if issue.id not in own_ids:
            yield f"- Note: {issue.what} ({issue.id})"
    if entry.open:
        yield f"- `lock` must resolve: {', '.join(entry.open)}"


def _additions(document: Document) -> str:
    """Return what the derived image adds to the base image, or an empty text."""
    derive = document["image"].get("derive", {})
    additions = [*derive.get("pip", []), *(["Python sources over its own"] if "overlay" in derive else [])]
    additions += [patch["path"].rpartition("/")[2] for patch in document.get("patches", [])]
    return f", with {', '.join(additions)}" if additions else ""
