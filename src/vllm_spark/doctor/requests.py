"""Requests in the log of a server: how many it answered, refused and failed, and the first reason it gave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_spark.doctor import failure_lines
from vllm_spark.doctor.families import classify, sentence
from vllm_spark.doctor.findings import AREA, GENERIC_RUNBOOK, Finding
from vllm_spark.doctor.log_lines import LogEntry
from vllm_spark.doctor.tracebacks import NOT_FATAL, WRAPPER

REFUSED = "request-refused"  # the family of the same cause in the log of a client
FAILED = "request-fails"
_FIX = "change what this sentence names in the request, or the limit in overrides.args of the deployment."
_FIX_OF_SERVER = failure_lines.FIXES["request_fails"]
_ANSWERED = 'HTTP/1.1" 200'
_REQUEST = re.compile(r'\S+ - "POST /v\d+/\S+ HTTP/[\d.]+" (?P<status>\d{3})\b')
_REASON = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S")


@dataclass(slots=True)
class Requests:
    """The requests of the last start in a log so far. A status of 4xx is a refusal, one of 5xx a fault of the server.

    `reason` and `fault` are the first exceptions beside a refusal and beside a fault. The engine logs an exception
    before the line of its request, uvicorn after it.
    """

    answered: int = 0
    refused: int = 0
    failed: int = 0
    first: tuple[str, int] | None = None
    first_failed: tuple[str, int] | None = None
    reason: tuple[str, int] | None = None
    fault: tuple[str, int] | None = None
    _said: tuple[str, int] | None = None  # an exception whose request has not been seen yet

    def skip(self, text: str) -> None:
        """Count the answers in a block that has nothing else to read."""
        self.answered += text.count(_ANSWERED)

    def read(self, number: int, entry: LogEntry, text: str) -> None:
        """Read a line of a server that serves."""
        if match := _REQUEST.match(text):
            self._count(match["status"], (text, number))
        elif entry.level not in NOT_FATAL and _REASON.match(entry.text) and not WRAPPER.search(text):
            if self.failed and self.fault is None:
                self.fault = (text, number)
            elif self.refused and self.reason is None:
                self.reason = (text, number)
            self._said = self._said or (text, number)

    def _count(self, status: str, line: tuple[str, int]) -> None:
        """Count a request. What was said before it is its reason."""
        if status >= "500":
            self.failed += 1
            self.first_failed = self.first_failed or line
            self.fault = self.fault or self._said
        elif status >= "400":
            self.refused += 1
            self.first = self.first or line
            self.reason = self.reason or self._said
        else:
            self.answered += status < "300"
            return
        self._said = None

    def findings(self, file: str) -> Iterator[Finding]:
        """Yield a warning if the server failed requests, and one if it refused at least half of them with a reason.
        Without a reason it can be a client that tries which requests a server takes."""
        total = self.refused + self.answered + self.failed
        if self.first_failed:
            line, number = self.fault or self.first_failed
            why = sentence(line) if self.fault else "the log has no exception beside them"
            cause = f"the server fails {self.failed} of {total} requests with an error of its own (5xx): {why}"
            known = classify(line) if self.fault else None
            remedy = known.fix if known and not known.family.id.startswith(AREA) else _FIX_OF_SERVER
            yield Finding(FAILED, cause, line, remedy, GENERIC_RUNBOOK, "warning", file, number, self.failed)
        if self.reason and self.mostly_refused:
            line, number = self.reason
            cause = f"the server refuses {self.refused} of {total} requests: {sentence(line)}"
            yield Finding(REFUSED, cause, line, _FIX, "engine-arguments.md", "warning", file, number, self.refused)

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
