"""The site of docs/, made by Sphinx with MyST, which reads Markdown as Git forges do. `make site` builds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = html_title = "vllm-spark"
root_doc = "README"
extensions = ["myst_parser"]
myst_enable_extensions = ["tasklist"]
# A link to an anchor that no heading has is a warning, and `make site` fails on a warning.
myst_heading_anchors = 6
highlight_language = "none"
html_theme = "furo"
html_static_path = html_css_files = ["site.css"]
html_extra_path = ["index.html"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
# A summary would be read from each page, which a browser refuses to a page from disk.
html_show_search_summary = False
smartquotes = html_use_index = html_copy_source = html_show_copyright = False

PART = re.compile(r"^## (.+)\n((?:(?!#).*\n)+)", re.MULTILINE)
PAGE = re.compile(r"\]\(([\w/-]+)\.md\)")
# The sources are not public, so a page of another folder is offered as a file, as MyST does with any other file.
ELSEWHERE = re.compile(r"\]\((\.\./\.\./[^)#]+\.md)\)")
# On disk a link says which file to open. Without words MyST puts the title of the page there.
FILE_NAME = re.compile(r"\[[\w/-]+\.md\](?=\((?!path:))")


# README's first section up to the end of its commands.
FIRST = re.compile(r"^## .*?\n```\n.*?^```$", re.MULTILINE | re.DOTALL)
README = Path(__file__).resolve().parents[2] / "README.md"


def first_commands() -> str:
    """Return the section that leads from a Spark to an answer. README alone has it."""
    found = FIRST.search(README.read_text(encoding="utf-8"))
    assert found, f"{README} has no section with commands"  # noqa: S101  a build without it must fail
    return found[0]


def parts(index: str) -> dict[str, list[str]]:
    """Return the navigation: the pages that each part of docs/README.md links as a whole."""
    return {part: PAGE.findall(text) for part, text in PART.findall(index)}


def setup(app: Any) -> None:
    """Add to each page what only the site needs."""
    app.connect("source-read", _as_page_of_the_site)


def _as_page_of_the_site(_app: Any, page: str, source: list[str]) -> None:
    text = FILE_NAME.sub("[]", ELSEWHERE.sub(r"](path:\1)", source[0]))
    below = {root_doc: parts(text), "reference/symptoms": {"Runbooks": ["runbooks/*"]}}
    if page == root_doc:
        text = text.replace("\n## ", f"\n{first_commands()}\n\n## ", 1)
    for part, pages in below.get(page, {}).items():
        names = "".join(f"/{name}\n" for name in pages)
        text += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {part}\n\n{names}```\n"
    source[0] = text
