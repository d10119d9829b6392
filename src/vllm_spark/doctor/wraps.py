"""Lines that a terminal or a mail has cut at a width: they are joined again.

A width is only assumed if the lines say so: a line that begins like none of the engine follows a line of full width,
or, with a mail, a line that had no room for the next word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from vllm_spark.doctor import carriers

_NARROWEST, _WIDEST = 60, 250
_USUAL = 80  # columns of a terminal
_MAILS = (72, 76, 78, 79, 80, 100, 120)
_FEWEST = 3  # joints; fewer can be chance
_SHARE = 0.8
_Value = TypeVar("_Value")
_WORD = re.compile(r"\S+")
_BEGIN = re.compile(
    r"\s*\([^()]{0,60}\bpid=|\[rank\d+\]:|[\w.-]+:\d+:\d+ \[\d+\] NCCL|(?:vllm-spark|docker|vllm(?: serve)?): |NVRM: "
    r"|\s*$|\{|The above exception|During handling"
)


@dataclass(frozen=True, slots=True)
class Wrap:
    """The width at which lines were cut, and whether at a space, which is missing then."""

    width: int
    at_space: bool

    def cut(self, line: str, following: str) -> bool:
        """Return True if the following line continues the line."""
        if not line or begins(following):
            return False
        if not self.at_space:
            return len(line) == self.width
        word = _WORD.match(following)
        # A word that is longer than the width has a line of its own.
        return word is not None and self.width < len(line) + 1 + len(word[0])


def begins(line: str) -> bool:
    """Return True if a line begins as lines of the engine, of a carrier, or of a traceback do."""
    return bool(_BEGIN.match(line)) or carriers.begins(line)


def learn(lines: Sequence[str]) -> Wrap | None:
    """Return how the lines of a block were cut, or None."""
    lines = [line.rstrip("\r\n") for line in lines]
    width = max(map(len, lines), default=0)
    pairs = [pair for pair in pairwise(lines) if all(pair)]
    full = [following for line, following in pairs if len(line) == width]
    loose = [pair for pair in pairs if not begins(pair[1]) and not pair[1][0].isspace()]
    enough = 1 if width == _USUAL else _FEWEST
    hard = _NARROWEST <= width <= _WIDEST and len(full) >= enough and _most(full, lambda line: not begins(line))
    if hard and _most(loose, lambda pair: len(pair[0]) == width):
        return Wrap(width, at_space=False)
    softs = (Wrap(mail, at_space=True) for mail in _MAILS if len(loose) >= _FEWEST)
    soft = next((soft for soft in softs if _fits(soft, lines, loose)), None)
    return soft or (Wrap(width, at_space=False) if hard else None)


def _fits(soft: Wrap, lines: Sequence[str], loose: Sequence[tuple[str, str]]) -> bool:
    return _most(lines, lambda line: len(line) <= soft.width) and _most(loose, lambda pair: soft.cut(*pair))


def _most(values: Sequence[_Value], true: Callable[[_Value], bool]) -> bool:
    return sum(map(true, values)) >= _SHARE * len(values)


def joined(lines: Sequence[str], wrap: Wrap) -> list[str]:
    """Return the lines with each cut line whole at the place of its first part, and empty lines for its other parts."""
    whole: list[str] = []
    start, last = 0, ""
    for place, raw in enumerate(lines):
        line = raw.rstrip("\r\n")
        if place and wrap.cut(last, line):
            whole[start] += f" {line}" if wrap.at_space else line
            whole.append("")
        else:
            start = place
            whole.append(line)
        last = line
    return whole
