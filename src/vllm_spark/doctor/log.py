"""One log, diagnosed block by block.

A block without any fixed text of the signatures and without anything that looks like an error is not parsed; that is
nearly every block of a large log. Everything here is pure, except that the packaged data files are read once.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from vllm_spark.doctor import carriers, causes, failure_lines, issues, matching, ranking, wraps
from vllm_spark.doctor.error_lines import ErrorLines
from vllm_spark.doctor.families import Evidence
from vllm_spark.doctor.findings import UNRECOGNISED, Finding, without_areas
from vllm_spark.doctor.log_lines import LINE_CHARACTERS, LogEntry, parse
from vllm_spark.doctor.places import NOWHERE, Place
from vllm_spark.doctor.requests import Requests
from vllm_spark.doctor.server_state import ServerState
from vllm_spark.doctor.signatures import Signature, is_beside, is_harmless, signatures, with_causes
from vllm_spark.doctor.stalls import Stalls
from vllm_spark.doctor.tracebacks import NOT_FATAL, ORDERLY, WRAPPER, Chain, Tracebacks, alike

_OVERLAP = 40  # lines of the previous block that are read again, because a pattern can span lines
_LESSONS = 3  # blocks from which a carrier is learnt
_WRAP_LINES = 2000  # in which the width of wrapped lines is learnt
_SPAN = 5  # lines at the end of a log within which a log "ends with" one
_BEFORE = 3  # lines before an unknown error that are shown
_CAUSES = 5  # findings of one signature with different values; further ones are counted with the first

_Key = tuple[str, tuple[str | None, ...]]  # the id of a signature, and the groups of its match


@dataclass(slots=True)
class Log:
    """One log, diagnosed block by block from its beginning. The log of a start is one systemd invocation.

    `engine` is False for a log of the host, as the kernel's: only known lines count there, because its other complaints
    and its end say nothing of a server. `place` is where it is from, whose names the fixes of `judge` have."""

    file: str = ""
    engine: bool = True
    place: Place = NOWHERE
    lines: int = 0
    _findings: dict[_Key, Finding] = field(default_factory=dict)
    _errors: ErrorLines = field(default_factory=ErrorLines)
    _counts: Counter[_Key] = field(default_factory=Counter)
    _last: dict[str, int] = field(default_factory=dict)
    _overlap: list[str] = field(default_factory=list)
    _known: set[int] = field(default_factory=set)
    _tracebacks: Tracebacks = field(default_factory=Tracebacks)
    _refused: Finding | None = None
    _last_error: tuple[str, int] | None = None
    _complaint: tuple[str, int] = ("", 0)
    _state: ServerState = field(default_factory=ServerState)
    _requests: Requests = field(default_factory=Requests)
    _stalls: Stalls = field(default_factory=Stalls)
    _engine: issues.Engine = field(default_factory=issues.Engine)
    # What signatures and families depend on and this log has, with the named groups.
    _noted: dict[re.Pattern[str], tuple[tuple[str, str], ...]] = field(default_factory=dict)
    _carrier: re.Pattern[str] | None = None
    _block: tuple[int, Sequence[LogEntry]] = (0, ())  # the lines that are read now, and the number of the first
    _width: int = 0  # at which lines are cut
    _lessons: int = _LESSONS

    def read(self, text: str) -> None:
        """Read the next block of whole lines."""
        text = carriers.plain(text)
        whole = "\n".join([*self._overlap, text])
        if self._width or self.lines < _WRAP_LINES:
            cut = whole.replace("\r\n", "\n").split("\n")
            self._width = self._width or wraps.width(cut)
            whole = "\n".join(wraps.joined(cut, self._width)) if self._width else whole
        self._stalls.read(text, self.lines + 1)
        kinds = matching.kinds(whole)
        expected = [sign for sign, texts in matching.literals() if any(text_ in kinds for text_ in texts)]
        if expected or self._tracebacks.busy or any(mark in kinds for mark in failure_lines.MARKS):
            lines = whole.removesuffix("\n").split("\n")
            first = self.lines - len(self._overlap) + 1
            if self._carrier is None and self._lessons:
                self._lessons -= 1
                self._carrier = carriers.learn(lines)
            self._judge(first, [parse(line, self._carrier) for line in lines], expected, kinds)
            self.lines += len(lines) - len(self._overlap)
        else:
            self._requests.skip(text)
            self.lines += text.count("\n") + (not text.endswith("\n"))
        last = text.removesuffix("\n").rsplit("\n", _OVERLAP)[-_OVERLAP:]
        self._overlap = [*self._overlap, *(line[:LINE_CHARACTERS] for line in last)][-_OVERLAP:]

    def findings(self) -> list[Finding]:
        """Return the findings of signatures and families, root cause first. A signature is more precise."""
        known = with_causes(list(self._signed()))
        causes = [finding for finding in known if finding.severity == "cause"]
        others = [finding for finding in known if finding.severity != "cause"]
        found = without_areas([*causes, *(self._families() if self.engine else ()), *others])
        if not self.engine or any(finding.severity != "warning" for finding in found):
            return found
        stalled = self._stalls.finding(self.file)
        return [*([stalled] if stalled else []), *found, *self._requests.findings(self.file)]

    def exception(self) -> Finding | None:
        """Return the innermost exception of the first traceback that neither a signature nor a family explains."""
        return next(iter(self._exceptions(UNRECOGNISED)), None)

    def unknown_cause(self) -> Finding | None:
        """Return the cause of a failed start without regard to signatures, or None if nothing failed."""
        chains = self._tracebacks.chains()
        if root := next((chain.root for chain in chains if chain.root), None):
            return causes.exception(root.line, root.number, self.file)
        if self._refused:
            return self._refused
        if self._last_error:
            return causes.explained(causes.logged(*self._last_error, self.file), self._evidence)
        if wrapper := next((line for line in self._tracebacks.lines() if not ORDERLY.search(line)), None):
            return causes.unrecognised(failure_lines.ENDED_WITHOUT, wrapper, 0, self.file)
        return (
            causes.unrecognised(failure_lines.ENDED_CAUSE, *self._state.ended, self.file) if self._state.ended else None
        )

    @property
    def stopped(self) -> int | None:
        """Return the number of the line that stopped a serving engine from outside; None if it was not stopped."""
        return self._state.stopped

    @property
    def refusals(self) -> str:
        """Return that most requests were refused, or an empty text."""
        return self._requests.note(self.file)

    @property
    def served(self) -> bool:
        """Return True if the last start in the log led to a server that started or answered."""
        return self._state.serving

    def unrecognised(self) -> list[Finding]:
        """Return a finding per kind of error that nothing explains: exceptions, refused commands, error lines. A log
        that ends in a failure without any of them has one finding that says so. What the engine prints beside any
        failure counts only alone."""
        if not self.engine:
            return []
        found = [
            *(finding for finding in self._exceptions(UNRECOGNISED) if not is_harmless(finding.line)),
            *self._logged_errors(UNRECOGNISED),
        ]
        telling = [finding for finding in found if not is_beside(finding.line)]
        if telling or any(finding.severity != "warning" for finding in self.findings()):
            return telling
        if not found:
            wrappers = (
                (raised.line, raised.number)
                for chain in self._tracebacks.chains()
                for raised in chain.raised
                if not chain.known
                and not ORDERLY.search(raised.line)
                and not is_harmless(raised.line)
                and self._state.counts(raised.number)
                and not self._state.survived(raised.number)
            )
            cut = None if self._state.serving or self._state.request else self._tracebacks.unfinished
            if ended := self._state.ended or next(wrappers, None) or cut:
                return [causes.unrecognised(failure_lines.ENDED_CAUSE, *ended, self.file)]
            return self._last_complaint()
        return found

    def _last_complaint(self) -> list[Finding]:
        """Return the last line that complains, if the log ends there before the server has started."""
        text, number = self._complaint
        if not text or self._findings or self._state.serving or number <= self.lines - failure_lines.LAST_WORDS_LINES:
            return []
        killed = failure_lines.KILLED.search(text)
        return [
            causes.unrecognised(
                failure_lines.KILLED_CAUSE if killed else failure_lines.LAST_WORDS_CAUSE, text, number, self.file
            )
        ]

    def _signed(self) -> Iterator[Finding]:
        """Yield the findings of the signatures, in their order."""
        for signature in signatures():
            keys = [key for key in self._findings if key[0] == signature.id]
            enough = sum(self._counts[key] for key in keys) >= signature.at_least
            at_end = self._last.get(signature.id, 0) > self.lines - _SPAN
            counts = at_end or not signature.at_end if enough else at_end and signature.or_at_end
            if counts and signature.unless not in self._noted and not self._only_noted(signature):
                yield from (self._said(signature, self._findings[key], self._counts[key]) for key in keys)

    def _only_noted(self, signature: Signature) -> bool:
        harmless = bool(signature.issue) and (self.place.judged or issues.contradicted(signature.issue, self._engine))
        return signature.severity == "warning" and harmless

    @property
    def notes(self) -> list[str]:
        """Return what a known issue warns of, which the gates or this version and model contradict."""
        why = (
            "the gate garbage has found its answers good"
            if self.place.judged
            else "not known of this version and model"
        )
        ids = {signature.id for signature in signatures() if self._only_noted(signature)}
        return [f"{found.cause}; {why}" for (name, _), found in self._findings.items() if name in ids]

    def _said(self, signature: Signature, finding: Finding, count: int) -> Finding:
        """Return a finding with the texts that depend on the rest of the log. They are not templates."""
        case = next((case.texts for case in signature.cases if case.in_log in self._noted), None)
        if case:
            finding = replace(finding, cause=case.cause, fix=case.fix, runbook=case.runbook)
        return issues.explained(replace(finding, count=count), self._engine)

    def _families(self) -> list[Finding]:
        """Return the findings of the families, the first cause first."""
        outlived = {
            raised.number
            for chain in self._tracebacks.chains()
            for raised in chain.raised
            if self._state.outlived(raised.process, chain.raised[-1].number)
        }
        return ranking.ordered(self._exceptions(""), self._logged_errors(""), outlived)[:_CAUSES]

    def _exceptions(self, signature: str) -> Iterator[Finding]:
        """Yield the chains of exceptions that no signature explains, all or those with this id."""
        for chain in self._tracebacks.chains():
            if chain.root and not chain.known and not self._state.survived(chain.root.number):
                finding = self._of_chain(chain)
                if signature in ("", finding.signature):
                    yield replace(finding, count=chain.count)

    def _logged_errors(self, signature: str) -> Iterator[Finding]:
        """Yield the error lines, all or those with this id."""
        for found in self._errors.findings():
            error = issues.explained(causes.explained(found, self._evidence), self._engine)
            if signature in ("", error.signature) and not self._state.survived(error.number):
                yield error

    def _of_chain(self, chain: Chain) -> Finding:
        """Return the finding of a chain: the family of an exception, or the exception itself."""
        raised, known = ranking.named(chain, self._evidence)
        line = (raised.line, raised.number, self.file)
        return issues.explained(causes.familiar(known, *line) if known else causes.exception(*line), self._engine)

    def _judge(self, first: int, entries: Sequence[LogEntry], expected: Iterable[Signature], kinds: str) -> None:
        """Diagnose a block whose first line has the number `first`. Lines up to self.lines were diagnosed before."""
        self._known = {number for number in self._known if number >= first}
        # The lines of one process are joined: two ranks that fail at once interleave their tracebacks, and a
        # signature can span lines.
        order = sorted(range(len(entries)), key=lambda index: entries[index].process)
        text = "\n".join(entries[index].text for index in order)
        begins = [0, *accumulate(len(entries[index].text) + 1 for index in order)]
        self._note(text, kinds)
        self._engine.read(text)
        for signature in expected:
            for match in signature.pattern.finditer(text):
                places = range(bisect_right(begins, match.start()) - 1, bisect_right(begins, match.end()))
                numbers = [first + order[place] for place in places if place < len(order)]
                self._match(signature, match, numbers)
        self._block = first, entries
        for number, entry in enumerate(entries, first):
            if number > self.lines:
                for text in entry.text.split("\n"):  # a message of a JSON logger can hold a traceback
                    self._read_error(number, entry if text == entry.text else replace(entry, text=text))

    def _match(self, signature: Signature, match: re.Match[str], numbers: Sequence[int]) -> None:
        # A line has one cause: a line that an earlier signature explains is not a second finding.
        if max(numbers) <= self.lines or numbers[0] in self._known:
            return
        self._known.update(numbers)
        self._last[signature.id] = max(numbers)
        amount = int(match[signature.amount]) if signature.amount else 1
        key: _Key = (
            signature.id,
            () if signature.amount else match.groups() or ((match[0],) if "{0}" in signature.cause else ()),
        )
        if key not in self._findings:
            same = [other for other in self._findings if other[0] == signature.id]
            key = key if len(same) < _CAUSES else same[0]
        self._counts[key] += amount
        # A block is sorted by process, not by line.
        if key not in self._findings or numbers[0] < self._findings[key].number:
            self._findings[key] = matching.finding_of(signature, match, self.file, numbers)

    def _read_error(self, number: int, entry: LogEntry) -> None:
        """Search a line for an error, without signatures."""
        text = entry.text.strip()
        served = self._state.serving
        self._state.read(number, entry, text)
        if served and not self._state.serving:
            self._start_again(number)
        elif self._state.serving and not served:
            self._note(text, matching.kinds(text))
        if self._state.serving and not self._state.stopping:
            self._requests.read(number, entry, text)
        api = self._state.serving and self._state.over is None and entry.process.lower().startswith("apiserver")
        if api and not failure_lines.FATAL.search(text):
            return  # once it serves, the API server logs errors of requests
        if self._state.stopping and not self._tracebacks.busy:
            return  # what the processes print while they are stopped
        if self._tracebacks.read(number, entry, lambda: number in self._known) or entry.level in NOT_FATAL:
            return
        if not entry.level and not text.startswith("INFO") and failure_lines.LAST_WORDS.search(text):
            skipped = "arning" in text or failure_lines.NATIVE_FRAME.match(text) or is_harmless(text)
            self._complaint = self._complaint if skipped else (text, number)
        # An indented line belongs to the message above it.
        indented = entry.text[:1].isspace() and not text.startswith("what():")  # C++ indents the reason of its end
        kind = None if number in self._known or indented else alike(text)
        if self._errors.again(kind):
            self._last_error = (text, number)
        elif refused := self._state.refusal(text):
            self._refused = self._refused or causes.unrecognised(refused, text, number, self.file)
            self._errors.add(kind, causes.unrecognised(refused, text, number, self.file))
        elif text != failure_lines.NOTHING and self._errors.is_error(entry, text, kind) and not WRAPPER.search(text):
            self._last_error = (text, number)
            found = replace(causes.logged(text, number, self.file), before=self._before(number))
            self._errors.add(kind, found)

    @property
    def _evidence(self) -> Evidence:
        return frozenset(self._noted.items())

    def _note(self, text: str, kinds: str) -> None:
        """Note what signatures and families depend on. `kinds` is the text without digits."""
        for note, texts in matching.notes():
            if note not in self._noted and any(fixed in kinds for fixed in texts) and (match := note.search(text)):
                self._noted[note] = tuple(match.groupdict(default="").items())

    def _before(self, number: int) -> tuple[str, ...]:
        """Return the lines before this one that say something."""
        first, entries = self._block
        near = entries[max(number - first - 3 * _BEFORE, 0) : number - first]
        return tuple(text for entry in near if (text := entry.text.strip()))[-_BEFORE:]

    def _start_again(self, number: int) -> None:
        """Forget what only the earlier start excused: the next one has not served yet."""
        excused = {signature.id for signature in signatures() if signature.unless in self._noted}
        repaired = {name for name in excused if self._last.get(name, 0) < number}
        self._findings = {key: finding for key, finding in self._findings.items() if key[0] not in repaired}
        self._requests = Requests()
        self._stalls.forget(number)
        for signature in signatures():
            if signature.unless:
                self._noted.pop(signature.unless, None)
