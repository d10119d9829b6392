"""Error lines of one log that are not exceptions: one finding per kind of line, digits aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from vllm_spark.doctor import failure_lines, families
from vllm_spark.doctor.findings import Finding
from vllm_spark.doctor.log_lines import LogEntry
from vllm_spark.doctor.signatures import is_harmless

_DULL = 1000  # kinds of lines without a level that are judged
_KINDS = 200  # of unknown error lines that are kept of one log


@dataclass(slots=True)
class ErrorLines:
    """The error lines so far. A kind is a line without its digits; a line that counts for nothing has none."""

    _found: dict[str, Finding | None] = field(default_factory=dict)  # None for a harmless line
    _counts: Counter[str] = field(default_factory=Counter)
    _dull: set[str] = field(default_factory=set)  # kinds of lines without a level that are not errors

    def findings(self) -> Iterator[Finding]:
        """Yield the findings in the order of their first lines."""
        for kind, found in self._found.items():
            if found:
                yield replace(found, count=self._counts[kind])

    def again(self, kind: str | None) -> bool:
        """Count a line if its kind is an unknown error of an earlier line. Returns True if it is."""
        earlier = self._found.get(kind) if kind is not None else None
        if kind is None or earlier is None or earlier.cause not in failure_lines.UNKNOWN:
            return False
        self._counts[kind] += 1
        return True

    def add(self, kind: str | None, finding: Finding) -> None:
        """Count a line by its kind."""
        if kind is not None and (kind in self._found or len(self._found) < _KINDS):
            self._found.setdefault(kind, None if is_harmless(finding.line) else finding)
            self._counts[kind] += 1

    def is_error(self, entry: LogEntry, text: str, kind: str | None) -> bool:
        """Return True for an error line that is not an exception. A kind of line without a level is judged once."""
        if entry.level in failure_lines.FATAL_LEVELS or failure_lines.NCCL_WARNING in text:
            return bool(text)
        if entry.level or kind is None or kind in self._dull or failure_lines.NATIVE_FRAME.match(text):
            return False
        if failure_lines.NATIVE.match(text) or failure_lines.FATAL.search(text):
            return True
        if not failure_lines.HINT.search(text) or len(self._dull) >= _DULL:
            return False
        if families.classify(text, raised=False):
            return True
        self._dull.add(kind)
        return False
