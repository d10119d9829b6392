"""Requests that run while the engine generates nothing, from the engine's report of every ten seconds.

A long prompt is computed without a generated token too, but it fills the KV cache meanwhile. So a stall is a row of
reports with requests, without a token, and with the same use of the cache.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from vllm_spark.doctor import failure_lines
from vllm_spark.doctor.findings import Finding

STALLED = "engine-stalls"
REPORTS = 5  # in a row; the first one covers the ten seconds before it
_REPORT = re.compile(
    r"Engine (?P<engine>\d+): Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, Avg generation throughput: "
    r"(?P<generated>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs, Waiting: +(?P<waiting>\d+) +reqs"
    r"[^\n]*?KV cache usage: (?P<usage>[\d.]+)%"
)
_IDLE = re.compile(r"prompt throughput: 0\.0 tokens/s, Avg generation throughput: 0\.0 tokens/s")
_FIX = failure_lines.FIXES["stalled"]


@dataclass(slots=True)
class _Row:
    """Reports of one engine in a row: their values, their number, the first of them and its line."""

    values: tuple[str, ...] = ()
    count: int = 0
    number: int = 0
    line: str = ""


@dataclass(slots=True)
class Stalls:
    """The last reports of each engine so far."""

    _rows: dict[str, _Row] = field(default_factory=dict)

    def read(self, text: str, first: int) -> None:
        """Read a block of raw text whose first line has the number `first`."""
        if "Avg generation throughput: " not in text:
            return
        if not _IDLE.search(text):
            self._rows.clear()
            return
        for match in _REPORT.finditer(text):
            values = match.group("running", "waiting", "usage")
            idle = float(match["prompt"]) == float(match["generated"]) == 0 and values[:2] != ("0", "0")
            row = self._rows.get(match["engine"], _Row())
            if not idle or not row.count or values[2:] != row.values[2:]:
                row = _Row(values, 0, first + text.count("\n", 0, match.start()), match[0])
            row.count += idle
            self._rows[match["engine"]] = row

    def forget(self, number: int) -> None:
        """Forget the reports before this line."""
        self._rows = {engine: row for engine, row in self._rows.items() if row.number > number}

    def finding(self, file: str) -> Finding | None:
        """Return a warning if the log ends while requests run and nothing is generated, or None."""
        row = max(self._rows.values(), key=lambda row: row.count, default=_Row())
        if row.count < REPORTS:
            return None
        running, waiting, _ = row.values
        cause = (
            f"the engine has {running} running and {waiting} waiting requests and has generated nothing for about "
            f"{row.count * 10} s ({row.count} reports in a row), with the same use of the KV cache: it hangs"
        )
        return Finding(STALLED, cause, row.line, _FIX, "engine-hangs.md", "warning", file, row.number, row.count)
