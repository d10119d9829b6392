"""Markdown of the generated pages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from vllm_spark.core import paths

# Code, links, and the path of a page of docs/ in a sentence.
PARTS = re.compile(r"```.*?```|`[^`\n]*`|\[[^\]]*\]\([^)]*\)|(?<![\w/.-])(?P<page>docs/[\w/-]+\.md)\b", re.DOTALL)


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table without a line break at its end."""
    titles = list(columns)
    return "\n".join([row(titles), "|" + "---|" * len(titles), *map(row, rows)])


def row(cells: Iterable[str]) -> str:
    """Return one row. A bar inside a cell is escaped."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def linked(text: str, page: str) -> str:
    """Return the text of a page, given as a path, with a link for each path of a page of ours that the data names."""

    def link(part: re.Match[str]) -> str:
        named = part["page"]
        if not named or not (paths.ROOT / named).is_file():
            return part[0]
        return f"[{Path(named).name}]({os.path.relpath(named, Path(page).parent)})"

    return PARTS.sub(link, text)
