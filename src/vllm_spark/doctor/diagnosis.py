"""Diagnosis of logs: the root cause of a failed start, and every finding of whole logs.

The last line of a failed start is nearly always "Engine core initialization failed. See root cause above". So known
causes are searched first (signatures.py, in order of priority). The root cause of an unknown failure is the innermost
exception of the first traceback that is not such a wrapper.

A log is read block by block. A block without any fixed text of the signatures and without anything that looks like an
error is not parsed; that is nearly every block of a large log. Everything here is pure, except that the packaged
signatures.yml is read once.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any

from vllm_spark.doctor.log_lines import LINE_CHARACTERS, LogEntry, parse
from vllm_spark.doctor.signatures import Signature, harmless, signatures
from vllm_spark.doctor.tracebacks import MARK, NO_DIGITS, NOT_FATAL, ORDERLY, WRAPPER, Tracebacks, alike

UNRECOGNISED = "unrecognised"
GENERIC_RUNBOOK = "engine-failed-to-start.md"
GENERIC_FIX = (
    "read the log from this line upwards with `journalctl -u vllm@<deployment>.service -o cat` and compare "
    "the command that ran, /etc/vllm-spark/<deployment>/launch, with the recipe."
)

_USAGE_ERROR = re.compile(r"(?:[\w./-]+(?: [\w-]+)?: )?error: \S")  # argparse
_DOCKER_ERROR = re.compile(r"docker: \S|Error response from daemon: ")
_NCCL_WARNING = " NCCL WARN "  # NCCL's name for what makes a call fail
_LOGGED = "the engine logged an error that no signature knows"
_SERVING = "Application startup complete."
_FATAL = frozenset({"ERROR", "CRITICAL"})
# Without a signature, only a block with one of these can hold an error. The last two are raylet's levels.
_MARKS = (MARK, "ERROR", "CRITICAL", "error: ", "docker: ", "Error response", _NCCL_WARNING, _SERVING, " E ", " F ")
_OVERLAP = 40  # lines of the previous block that are read again, because a pattern can span lines
_SPAN = 5  # lines at the end of a log within which a log "ends with" one
_CAUSES = 5  # findings of one signature with different values; further ones are counted with the first
_KINDS = 200  # of unknown error lines that are kept of one log
_REPORTED = 5  # of the unknown errors
_LINE_LIMIT = 300  # characters of the log line in a message; some vLLM errors list every choice


_Key = tuple[str, tuple[str | None, ...]]  # the id of a signature, and the groups of its match


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding in a log. `fix` is without "Fix:"; `runbook` is a file of docs/runbooks; `number` is that of the
    first matching line, 0 if unknown; `count` is the number of matches."""

    signature: str
    cause: str
    line: str
    fix: str
    runbook: str
    severity: str = "cause"
    file: str = ""
    number: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """Findings, root cause first, and a few of the errors that no signature explains."""

    findings: tuple[Finding, ...]
    unrecognised: tuple[Finding, ...]


@dataclass(slots=True)
class Log:
    """One log, diagnosed block by block from its beginning. The log of a start is one systemd invocation."""

    file: str = ""
    lines: int = 0
    _findings: dict[_Key, Finding] = field(default_factory=dict)
    _errors: dict[str, Finding | None] = field(default_factory=dict)  # by kind; None for a harmless line
    _counts: Counter[_Key | str] = field(default_factory=Counter)  # of findings and errors
    _last: dict[str, int] = field(default_factory=dict)
    _overlap: list[str] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)
    _tracebacks: Tracebacks = field(default_factory=Tracebacks)
    _refused: Finding | None = None
    _last_error: tuple[str, int] | None = None
    _serving: bool = False

    def read(self, text: str) -> None:
        """Read the next block of whole lines."""
        whole = "\n".join([*self._overlap, text])
        kinds = _kinds(whole)
        expected = [sign for sign, texts in _literals() if any(text_ in kinds for text_ in texts)]
        if expected or self._tracebacks.busy or any(mark in kinds for mark in _MARKS):
            lines = [*self._overlap, *text.removesuffix("\n").split("\n")]
            first = self.lines - len(self._overlap) + 1
            self._judge(first, [parse(line) for line in lines], expected)
            self.lines += len(lines) - len(self._overlap)
        else:
            self.lines += text.count("\n") + (not text.endswith("\n"))
        last = text.removesuffix("\n").rsplit("\n", _OVERLAP)[-_OVERLAP:]
        self._overlap = [*self._overlap, *(line[:LINE_CHARACTERS] for line in last)][-_OVERLAP:]

    def findings(self) -> list[Finding]:
        """Return the findings of the signatures, root cause first."""
        kept: list[Finding] = []
        for signature in signatures():
            keys = [key for key in self._findings if key[0] == signature.id]
            enough = sum(self._counts[key] for key in keys) >= signature.at_least
            if enough and (not signature.at_end or self._last.get(signature.id, 0) > self.lines - _SPAN):
                kept += [replace(self._findings[key], count=self._counts[key]) for key in keys]
        return kept

    def exception(self) -> Finding | None:
        """Return the innermost exception of the first traceback that no signature explains."""
        chains = self._tracebacks.chains()
        root = next((chain.root for chain in chains if chain.root and not chain.known), None)
        return self._exception(root.line, root.number) if root else None

    def unknown_cause(self) -> Finding | None:
        """Return the cause of a failed start without regard to signatures, or None if nothing failed."""
        chains = self._tracebacks.chains()
        if root := next((chain.root for chain in chains if chain.root), None):
            return self._exception(root.line, root.number)
        if self._refused:
            return self._refused
        if self._last_error:
            return self._logged(*self._last_error)
        if wrapper := next((line for line in self._tracebacks.lines() if not ORDERLY.search(line)), None):
            return self._unrecognised("a process of the engine ended without a reason in the log", wrapper, 0)
        return None

    def unrecognised(self) -> list[Finding]:
        """Return a finding per kind of error that no signature explains: exceptions, refused commands, error lines."""
        exceptions = [
            replace(self._exception(chain.root.line, chain.root.number), count=chain.count)
            for chain in self._tracebacks.chains()
            if chain.root and not chain.known and not _is_harmless(chain.root.line)
        ]
        errors = [replace(error, count=self._counts[kind]) for kind, error in self._errors.items() if error]
        return [*exceptions, *errors]

    def _judge(self, first: int, entries: Sequence[LogEntry], expected: Iterable[Signature]) -> None:
        """Diagnose a block whose first line has the number `first`. Lines up to self.lines were diagnosed before."""
        self._known = {number for number in self._known if number >= first}
        # The lines of one process are joined: two ranks that fail at once interleave their tracebacks, and a
        # signature can span lines.
        order = sorted(range(len(entries)), key=lambda index: entries[index].process)
        text = "\n".join(entries[index].text for index in order)
        begins = [0, *accumulate(len(entries[index].text) + 1 for index in order)]
        for signature in expected:
            for match in signature.pattern.finditer(text):
                places = range(bisect_right(begins, match.start()) - 1, bisect_right(begins, match.end()))
                numbers = [first + order[place] for place in places if place < len(order)]
                self._match(signature, match, numbers)
        for number, entry in enumerate(entries, first):
            if number > self.lines:
                self._read_error(number, entry)

    def _match(self, signature: Signature, match: re.Match[str], numbers: Sequence[int]) -> None:
        # A line has one cause: a line that an earlier signature explains is not a second finding.
        if max(numbers) <= self.lines or numbers[0] in self._known:
            return
        self._known.update(numbers)
        self._last[signature.id] = max(numbers)
        key: _Key = (signature.id, match.groups() or ((match[0],) if "{0}" in signature.cause else ()))
        if key not in self._findings:
            same = [other for other in self._findings if other[0] == signature.id]
            key = key if len(same) < _CAUSES else same[0]
        self._counts[key] += 1
        # A block is sorted by process, not by line.
        if key not in self._findings or numbers[0] < self._findings[key].number:
            self._findings[key] = _finding(signature, match, self.file, numbers[0])

    def _read_error(self, number: int, entry: LogEntry) -> None:
        """Search a line for an error, without signatures."""
        self._serving = self._serving or entry.text.startswith(_SERVING)
        if self._serving and entry.process.lower().startswith("apiserver"):
            return  # once it serves, the API server logs errors of requests
        text = entry.text.strip()
        if self._tracebacks.read(number, entry, lambda: number in self._known) or entry.level in NOT_FATAL:
            return
        # An indented line belongs to the message above it.
        kind = None if number in self._known or entry.text[:1].isspace() else alike(text)
        if kind is not None and (earlier := self._errors.get(kind)) and earlier.cause == _LOGGED:
            self._counts[kind] += 1
            self._last_error = (text, number)
        elif refused := _refusal(text):
            self._refused = self._refused or self._unrecognised(refused, text, number)
            self._count_error(kind, self._unrecognised(refused, text, number))
        elif (entry.level in _FATAL or _NCCL_WARNING in text) and text and not WRAPPER.search(text):
            self._last_error = (text, number)
            self._count_error(kind, self._logged(text, number))

    def _count_error(self, kind: str | None, finding: Finding) -> None:
        if kind is not None and (kind in self._errors or len(self._errors) < _KINDS):
            self._errors.setdefault(kind, None if _is_harmless(finding.line) else finding)
            self._counts[kind] += 1

    def _logged(self, text: str, number: int) -> Finding:
        return self._unrecognised(_LOGGED, text, number)

    def _exception(self, line: str, number: int) -> Finding:
        name = line.partition(":")[0].rpartition(".")[2]
        return self._unrecognised(f"the engine stopped with a {name} that no signature knows", line, number)

    def _unrecognised(self, cause: str, line: str, number: int) -> Finding:
        return Finding(UNRECOGNISED, cause, line, GENERIC_FIX, GENERIC_RUNBOOK, file=self.file, number=number)


def root_cause(lines: Sequence[str]) -> Finding | None:
    """Return the root cause of a failed start, or None if nothing in these lines failed.

    `lines` are those of one start (one systemd invocation), oldest first. Lines of an older failure would count.
    """
    log = Log()
    if lines:
        log.read("\n".join(line.rstrip("\n") for line in lines))
    known = next((finding for finding in log.findings() if finding.severity != "warning"), None)
    if known and known.severity != "symptom":
        return known
    return log.exception() or known or log.unknown_cause()


def judge(logs: Iterable[Log]) -> Judgement:
    """Return the findings of several logs, root cause first, with one entry per log that shows it."""
    logs = list(logs)
    order = {signature.id: place for place, signature in enumerate(signatures())}
    findings = sorted(
        (finding for log in logs for finding in log.findings()), key=lambda finding: order[finding.signature]
    )
    return Judgement(tuple(findings), tuple([finding for log in logs for finding in log.unrecognised()][:_REPORTED]))


def explain(finding: Finding) -> str:
    """Return one message to the operator: cause, matching line, fix, runbook."""
    return f"{finding.cause} — seen: {log_line(finding)} Fix: {finding.fix} See docs/runbooks/{finding.runbook}"


def log_line(finding: Finding) -> str:
    """Return the log line, cut to the length of a message."""
    return finding.line if len(finding.line) <= _LINE_LIMIT else finding.line[:_LINE_LIMIT] + " …"


def _kinds(text: str) -> str:
    """Return every kind of line once, without its digits. A large log repeats a few lines, and it takes longer to
    search all of it for a hundred texts than to reduce it first."""
    return "\n".join(set(text.translate(NO_DIGITS).split("\n")))


@cache
def _literals() -> list[tuple[Signature, tuple[str, ...]]]:
    return [(sign, tuple(fixed.translate(NO_DIGITS) for fixed in sign.literals)) for sign in signatures()]


def _refusal(text: str) -> str:
    """Return what refused to start the engine according to this line, or an empty text."""
    if _USAGE_ERROR.match(text):
        return "the engine refused its command line"
    return "Docker did not start the container" if _DOCKER_ERROR.match(text) else ""


def _is_harmless(text: str) -> bool:
    return any(line.pattern.search(text) for line in harmless())


def _finding(signature: Signature, match: re.Match[str], file: str, number: int) -> Finding:
    values = [match[0], *match.groups(default="")]
    names: dict[str, Any] = match.groupdict(default="")
    return Finding(
        signature=signature.id,
        # The groups of other alternatives are empty and leave gaps in the sentence.
        cause=" ".join(signature.cause.format(*values, **names).split()),
        line=_line_at(match.string, match.start()),
        fix=signature.fix.format(*values, **names),
        runbook=signature.runbook,
        severity=signature.severity,
        file=file,
        number=number,
    )


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()
