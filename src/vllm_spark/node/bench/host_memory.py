"""Readings of /proc: memory, page cache and swap of the host."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_spark.node.bench.records import Sample

KIB_PER_GIB = 1 << 20
BYTES_PER_MIB = 1 << 20
SWAP_PAGES = ("pswpin", "pswpout")


def numbers(text: str) -> dict[str, int]:
    """Return name -> value of /proc/meminfo (in KiB) or /proc/vmstat (in pages). A line of another form is left out."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdecimal():
            values[words[0]] = int(words[1])
    return values


def memory(meminfo: str) -> Sample:
    """Return memory_gib, cache_gib and swap_gib of the text of /proc/meminfo, as far as it has them."""
    kib = numbers(meminfo)
    sample: Sample = {}
    if {"MemTotal", "MemAvailable"} <= kib.keys():
        sample["memory_gib"] = (kib["MemTotal"] - kib["MemAvailable"]) / KIB_PER_GIB
    if "Cached" in kib:
        sample["cache_gib"] = (kib["Cached"] + kib.get("Buffers", 0)) / KIB_PER_GIB
    if {"SwapTotal", "SwapFree"} <= kib.keys():
        sample["swap_gib"] = (kib["SwapTotal"] - kib["SwapFree"]) / KIB_PER_GIB
    return sample


def swapped_mib(vmstat: str, page_bytes: int) -> float | None:
    """Return what the kernel has moved between memory and swap since its start, or None if the text does not say it."""
    pages = numbers(vmstat)
    if not set(SWAP_PAGES) <= pages.keys():
        return None
    return sum(pages[name] for name in SWAP_PAGES) * page_bytes / BYTES_PER_MIB


class HostMemory:
    """Reads /proc. Each reading has what was swapped since the one before it."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._swapped = self._total_swapped()

    def read(self) -> Sample:
        """Return the values of now. A file that cannot be read is left out."""
        sample = memory(self._text("meminfo"))
        swapped = self._total_swapped()
        if swapped is not None and self._swapped is not None:
            sample["swapped_mib"] = swapped - self._swapped
        self._swapped = swapped
        return sample

    def _total_swapped(self) -> float | None:
        return swapped_mib(self._text("vmstat"), self._page_bytes)

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""
