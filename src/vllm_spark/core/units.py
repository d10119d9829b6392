"""Units of sizes and times, and their text in messages."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30
# Sizes of downloads and disks, and bandwidths, are in decimal units.
GB = 1e9


def gib(size: float) -> str:
    """Return a size in bytes as text in GiB, e.g. `1.5 GiB`."""
    return f"{size / GIB:.1f} GiB"


_HOUR_S = 3600


def clock(seconds: float) -> str:
    """Return a duration as `MM:SS`, e.g. 01:07, or as `H:MM:SS` from one hour on, e.g. 1:00:07."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    if whole < _HOUR_S:
        return f"{minutes:02d}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
