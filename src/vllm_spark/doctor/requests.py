"""Requests in the log of a server: how many it answered and how many it refused, and the first reason it gave."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vllm_spark.doctor.families import sentence
from vllm_spark.doctor.findings import Finding
from vllm_spark.doctor.log_lines import LogEntry
from vllm_spark.doctor.tracebacks import NOT_FATAL, WRAPPER

REFUSED = "request-refused"  # the family of the same cause in the log of a client
_FIX = "change what this sentence names in the request, or the limit in overrides.args of the deployment."
_ANSWERED = 'HTTP/1.1" 200'
_REQUEST = re.compile(r'\S+ - "POST /v\d+/\S+ HTTP/[\d.]+" (?P<status>\d{3})\b')
_REASON = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S")


@dataclass(slots=True)
class Requests:
    """The requests of the last start in a log so far."""

    answered: int = 0
    refused: int = 0
    first: tuple[str, int] | None = None
    reason: tuple[str, int] | None = None

    def skip(self, text: str) -> None:
        """Count the answers in a block that has nothing else to read."""
        self.answered += text.count(_ANSWERED)

    def read(self, number: int, entry: LogEntry, text: str) -> None:
        """Read a line of a server that serves."""
        if match := _REQUEST.match(text):
            refused = match["status"] >= "400"
            self.refused += refused
            self.answered += match["status"] < "300"
            self.first = self.first or ((text, number) if refused else None)
        elif self.reason is None and entry.level not in NOT_FATAL and _REASON.match(entry.text):
            self.reason = None if WRAPPER.search(text) else (text, number)

    def finding(self, file: str) -> Finding | None:
        """Return a warning if at least half of the requests were refused and the log has the reason, or None. Without a
        reason it can be a client that tries which requests a server takes."""
        if not self.reason or not self.mostly_refused:
            return None
        line, number = self.reason
        cause = f"the server refuses {self.refused} of {self.refused + self.answered} requests: {sentence(line)}"
        return Finding(REFUSED, cause, line, _FIX, "engine-arguments.md", "warning", file, number, self.refused)

    @property
    def mostly_refused(self) -> bool:
        """Return True if at least half of the requests were refused."""
        return 0 < self.refused >= self.answered

    def note(self, file: str) -> str:
        """Return what an operator must know of a log without a finding, or an empty text."""
        if not self.first or not self.mostly_refused:
            return ""
        return (
            f"{self.refused} of {self.refused + self.answered} requests were refused, first at {file}:{self.first[1]}"
        )
