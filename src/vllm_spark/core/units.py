"""Units of sizes and times, as messages show them."""

from __future__ import annotations

GIB = 1 << 30


def gib(size: float) -> str:
    """A size in GiB as messages show it."""
    return f"{size / GIB:.1f} GiB"


_HOUR_S = 3600


def clock(seconds: float) -> str:
    """Seconds as a clock shows them: 01:07, above an hour 1:00:07."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    if whole < _HOUR_S:
        return f"{minutes:02d}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
