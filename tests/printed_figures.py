"""Blocks of a page that a program printed: the words are the program's, and the figures near its own of today."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

BLOCK = re.compile(r"^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.:/-])\d+(?:\.\d+)?(?= to |[ %)]|$)", re.MULTILINE)
# Figures of a forecast move with its constants; a page is written again when they move by more.
NEAR = 0.25


def blocks(page: Path) -> list[str]:
    """Return the blocks of printed text of a page."""
    return [block.rstrip("\n") for block in BLOCK.findall(page.read_text(encoding="utf-8"))]


def differences(page: str, printed: str) -> list[str]:
    """Return what of a block of a page the program does not print today."""
    if (old := FIGURE.sub("N", page)) != (new := FIGURE.sub("N", printed)):
        both = itertools.zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
        return [f"the page: {own}\nprinted: {now}" for own, now in both if own != now]
    figures = zip(FIGURE.findall(page), FIGURE.findall(printed), strict=True)
    return [f"{own} is {now}" for own, now in figures if abs(float(own) - float(now)) > NEAR * float(now)]
