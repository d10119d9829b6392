"""Numbers and untrusted words as text of the report."""

from __future__ import annotations

import math
import unicodedata

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
