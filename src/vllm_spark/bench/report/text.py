"""Numbers and untrusted words as text of the report, and how it reads figures that are numbers."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from string import ascii_uppercase
from typing import TypeGuard

from vllm_spark.node.bench.records import CellRecord, Figure

KI = 1024
MOST_DECIMALS = 6
_SHOWN_AS_CODE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def plain(value: object) -> str:
    """Return a text in which control and direction characters are visible as `\\uXXXX`. Line breaks become spaces."""
    words = " ".join(str(value).split())
    return "".join(f"\\u{ord(c):04x}" if unicodedata.category(c) in _SHOWN_AS_CODE else c for c in words)


def number(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point: 7.02, 76.4, 1,234."""
    size = abs(value)
    if size >= 100 or value == 0:  # noqa: PLR2004  three digits
        return f"{value:,.0f}"
    digits = min(MOST_DECIMALS, 2 - math.floor(math.log10(size)))
    return f"{value:.{digits}f}"


def percent(share: float) -> str:
    """Return a share as a percentage: 83 %, 0.4 %, 0.02 %. A small one does not become zero."""
    value = 100 * share
    if 0 < abs(value) < 0.05:  # noqa: PLR2004  what one decimal rounds to zero
        return f"{value:.2f} %" if abs(value) >= 0.005 else "<0.01 %"  # noqa: PLR2004
    return f"{value:.1f} %" if abs(value) < 10 else f"{value:.0f} %"  # noqa: PLR2004


def change(ratio: float) -> str:
    """Return a ratio as a change with its sign: -8.7 %, +0.4 %. Twice and more, or half and less, stay a factor."""
    if not 0.5 < ratio < 2:  # noqa: PLR2004  a factor reads better there
        return f"{number(ratio)} times"
    return f"{100 * (ratio - 1):+.1f} %"


def settings(values: Mapping[str, object]) -> str:
    """Return settings as text: `top p 0.95, mode eager`."""
    return ", ".join(f"{plain(name).replace('_', ' ')} {plain(value)}" for name, value in values.items())


def length(tokens: float) -> str:
    """Return a length in tokens, whole multiples of 1024 as `4k`."""
    whole = round(tokens)
    return f"{whole // KI}k" if whole >= KI and whole % KI == 0 else f"{whole}"


def duration(seconds: float) -> str:
    """Return a duration as text: 42 s, 12 min 30 s, 6 h 05 min."""
    whole = round(seconds)
    if whole < 120:  # noqa: PLR2004  two minutes
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"  # noqa: PLR2004


def letter(index: int) -> str:
    """Return the letter of a run in the report: A for the first."""
    return ascii_uppercase[index]


def letters(count: int, alone: str = "") -> list[str]:
    """Return the letters of so many runs; `alone` for a single one, which has no letter."""
    return [letter(index) for index in range(count)] if count > 1 else [alone]


def is_number(value: object) -> TypeGuard[float]:
    """Return True for a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def figure(cell: CellRecord, metric: str) -> Figure | None:
    """Return a figure of a measured cell that has a number as its median."""
    found = cell["figures"].get(metric) if cell["state"] == "measured" else None
    return found if found and is_number(found["median"]) else None
