"""docs/reference/support.md: what the toolkit was tried with."""

from __future__ import annotations

from typing import Any

from lab.pages.markdown import table
from vllm_spark.core import paths, strict_yaml
from vllm_spark.deploy.check_registry import REGISTRY

DATA = paths.ROOT / "lab" / "support.yml"
STATES = ("regularly", "once", "refused", "warned", "not tried")
# States whose `by` is the id of a check of the host.
OF_CHECKS = ("refused", "warned")
HEAD = """\
# What the toolkit was tried with

`make docs` writes this page from `lab/support.yml`; do not edit it. *regularly*: `make test` runs with it, by the named
file. *once*: it was run, and nothing repeats it. *refused* and *warned*: the check of that id says it before a deploy.
*not tried*: nobody has run it. No row was tried on a real Spark.
"""
COLUMNS = ("what", "version", "state", "shown by", "remark")


def rows() -> list[dict[str, Any]]:
    """Return the rows of the data."""
    loaded: list[dict[str, Any]] = strict_yaml.load_own(DATA.read_text(encoding="utf-8"))
    return loaded


def text() -> str:
    """Return the page."""
    return f"{HEAD}\n{table(COLUMNS, map(_cells, rows()))}\n"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    by = row.get("by", "")
    if row["state"] in OF_CHECKS:
        shown = f"[{by}](../runbooks/{REGISTRY[by].runbook}.md)"
    else:
        shown = f"[{by}](../../{by})" if by else ""
    return (row["what"], row["version"], row["state"], shown, row.get("note", ""))
