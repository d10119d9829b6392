"""Lines that a terminal has cut at its width: they are joined again.

The width is that of the longest line, and is only assumed if most lines of that width are followed by one that begins
like none of the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from vllm_spark.doctor import carriers

_NARROWEST, _WIDEST = 60, 250
_USUAL = 80  # columns of a terminal
_FEWEST = 3  # joints; fewer can be chance
_SHARE = 0.8
_BEGIN = re.compile(
    r"\s*\([^()]{0,60}\bpid=|\[rank\d+\]:|[\w.-]+:\d+:\d+ \[\d+\] NCCL|(?:vllm-spark|docker|vllm(?: serve)?): |NVRM: "
    r"|\s*$|\{|The above exception|During handling"
)


def begins(line: str) -> bool:
    """Return True if a line begins as lines of the engine, of a carrier, or of a traceback do."""
    return bool(_BEGIN.match(line)) or carriers.begins(line)


def width(lines: Sequence[str]) -> int:
    """Return the width at which the lines of a block were cut, or 0."""
    widest = max(map(len, lines), default=0)
    full = [following for line, following in pairwise(lines) if len(line) == widest and following]
    cut = sum(not begins(following) for following in full)
    enough = cut >= (1 if widest == _USUAL else _FEWEST) and cut >= _SHARE * len(full)
    return widest if enough and _NARROWEST <= widest <= _WIDEST else 0


def joined(lines: Sequence[str], width: int) -> list[str]:
    """Return the lines with each cut line whole at the place of its first part, and empty lines for its other parts."""
    whole: list[str] = []
    start, last = 0, ""
    for place, line in enumerate(lines):
        if place and len(last) == width and not begins(line):
            whole[start] += line
            whole.append("")
        else:
            start = place
            whole.append(line)
        last = line
    return whole
