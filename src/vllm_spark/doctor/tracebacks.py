"""Python's tracebacks in a log of several processes: each chain of exceptions, its cause first.

Lines are read one at a time. Only the chains are kept, and chains with the same cause once. The tail of a log can begin
within a traceback, so that an exception line counts without the header of its traceback.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from vllm_spark.doctor.log_lines import LogEntry

NOT_FATAL = frozenset({"DEBUG", "INFO", "WARNING"})
ORDERLY = re.compile(r"SystemExit|KeyboardInterrupt|CancelledError")
# Exceptions that only report the failure of another process or frame (v1/engine/utils.py and exceptions.py,
# v1/executor/multiproc_executor.py, Ray's wrapper of a remote exception), or an orderly exit.
WRAPPER = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|EngineCore (?:failed to start|encountered a fatal error)"
    r"|WorkerProc (?:initialization failed|failed to start)|Worker failed with error"
    r"|failed to be inspected|Engine process (?:failed to start|\(pid \d+\) died)|EngineGenerateError|DeadError"
    r"|Engine loop is not running|(?:WorkerProc|EngineCore) hit an exception"
    rf"|RayTaskError|ActorDiedError|{ORDERLY.pattern}"
)
# A fault of a kernel, which no later call of the same process survives.
CUDA_FAULT = re.compile(
    r"illegal (?:memory access|instruction was)|misaligned address|device-side assert|invalid program counter"
    r"|unspecified launch failure|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL"
)
MARK = "Traceback (most recent call last):"

# What Python prints between an exception and the one raised because of it, or while handling it.
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<name>[A-Za-z_]\w*)(?:\([\w.]+\))?(?::\s|:?$)")
# An exception line at the first column, without the traceback above it.
_BARE = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Timeout|Exit|Interrupt)(?:\([\w.]+\))?(?::\s|:?$)"
    r"|(?:[a-z_]\w*\.)+(?!\w*Warning)[A-Z]\w+: "
)
# Who posts a traceback may leave out the number of the line or the function.
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)"(?:, line \d+)?(?:,? in (?P<function>\S+))?')
# The line above the traceback of an exception that ends nothing: Python's note of a failing __del__, and a plugin that
# the engine goes on without (vllm/plugins/__init__.py).
_HANDLED = ("Exception ignored in", "Failed to load plugin")
_FRAMES = 12  # kept of a traceback, the innermost ones
# An outer frame that is kept as well: the model that is loaded or that computes is the drafter, not the main model.
_DRAFTER = re.compile(r"\S*(?:spec_decode|load_draft|load_eagle|speculator)")
_UNFINISHED = re.compile(r"(?:[:,=(]|\bnamed)$")  # the message continues on the next line
_VALIDATION = re.compile(r"ValidationError: \d+ validation errors? for ")
_VALIDATION_LINES = 2  # pydantic: the field, if there is one, then what is wrong with it
# A line of pydantic's message whose first line is missing.
_DETAIL = re.compile(r"\s*(?:Value error|Assertion failed), \S")
# The source under the last frame of a traceback that was cut there.
_RAISES = re.compile(r"raise (?P<name>\w+)\(f?(?P<quote>[\"'])(?P<message>.+)(?P=quote)")
# What a worker said, in the message of the process that waited for it (v1/executor/multiproc_executor.py).
_FORWARDED = re.compile(r"Worker failed with error '(?P<message>.+?)(?:'(?:, please|$)|$)")
_MARKS_BELOW = re.compile(r"[\s~^.]*$")  # what Python prints under a line of source
_ADDRESS = re.compile(r"0x[0-9a-f]+")
NO_DIGITS = str.maketrans("", "", "0123456789")
_KINDS = 200  # kept of one log; a log that consists of tracebacks must not fill the memory
_STREAMS = 500


@dataclass(slots=True)
class Raised:
    """An exception line of a traceback, its number, the frames above it, its process ("" if unknown), and whether a
    signature knows it."""

    line: str
    number: int
    known: bool = False
    frames: tuple[str, ...] = ()
    process: str = ""


@dataclass(slots=True)
class Chain:
    """Exceptions raised because of one another, the innermost first; `count` is the number of such chains."""

    raised: list[Raised]
    count: int = 1

    @property
    def root(self) -> Raised | None:
        """The innermost exception that is not a wrapper, or None if all are."""
        return next((raised for raised in self.raised if not WRAPPER.search(raised.line)), None)

    @property
    def known(self) -> bool:
        """Return True if a signature explains one of the exceptions."""
        return any(raised.known for raised in self.raised)

    def unwrapped(self) -> Chain:
        """Return the chain with the message of a worker in place of the wrapper that has it."""
        inner = [(raised, _FORWARDED.search(raised.line)) for raised in self.raised]
        return Chain(
            [replace(raised, line=match["message"]) if match else raised for raised, match in inner], self.count
        )


class State(Enum):
    """What the lines of a process belong to."""

    OUTSIDE = auto()
    HANDLED = auto()  # after the line above a traceback that ends nothing
    IGNORED = auto()  # in that traceback
    FRAMES = auto()
    MESSAGE = auto()  # an exception line whose message continues


@dataclass(slots=True)
class _Line:
    """A line of a process, its number, and the question whether a signature knows it."""

    text: str
    number: int
    process: str
    known: Callable[[], bool]


@dataclass(slots=True)
class _Stream:
    """One process that prints tracebacks. `keep` takes a chain that is complete."""

    keep: Callable[[Chain], None]
    state: State = State.OUTSIDE
    chain: Chain | None = None
    linked: bool = False  # the next exception belongs to the chain
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=_FRAMES))
    outer: str = ""  # a frame further out that tells what is loaded
    last: tuple[str, int] = ("", 0)  # the last frame, or the header of a traceback without frames
    source: str = ""  # the line of source under it
    missing: int = 0  # lines of the message
    after_message: State = State.OUTSIDE

    @property
    def open(self) -> bool:
        """True within a traceback that counts."""
        return State.FRAMES in (self.state, self.after_message if self.state is State.MESSAGE else None)

    @property
    def cut(self) -> bool:
        """True if the log ended now within a traceback that counts, or after frames without an exception."""
        return self.open or (bool(self.frames) and self.state is not State.IGNORED)

    def read(self, line: _Line) -> bool:
        """Read the next line. Returns True if it belongs to a traceback."""
        if line.text.startswith(MARK):
            self.state = State.IGNORED if self.state is State.HANDLED else State.FRAMES
            self._forget_frames()
            self.last, self.source = (line.text.strip(), line.number), ""
            return True
        if frame := _FRAME.match(line.text):
            if len(self.frames) == _FRAMES and _DRAFTER.match(self.frames[0]):
                self.outer = self.frames[0]
            self.frames.append(f"{frame['file']} {frame['function'] or '?'}")
            self.last, self.source = (line.text.strip(), line.number), ""
            return self.open
        if line.text.startswith(_LINKS):
            self.linked = True
            if self.state is State.MESSAGE:
                self.state = self.after_message
            return True
        return _READERS[self.state](self, line)

    def _outside(self, line: _Line) -> bool:
        if _BARE.match(line.text) or _DETAIL.match(line.text):
            return self._close(line)
        if line.text.startswith(_HANDLED):
            self.state = State.HANDLED
            return True
        return self._within(line)

    def _ignored(self, line: _Line) -> bool:
        if _EXCEPTION.match(line.text) and not CUDA_FAULT.search(line.text):
            self.state = State.OUTSIDE
            self._forget_frames()
            return True
        return self._in_frames(line)

    def _in_frames(self, line: _Line) -> bool:
        if line.text[:1].strip() or _DETAIL.match(line.text):
            return self._close(line)
        return self._within(line)

    def _within(self, line: _Line) -> bool:
        """Take the line of source under the last frame."""
        if self.frames and not self.source and not _MARKS_BELOW.match(line.text):
            self.source = line.text.strip()
        return self.open

    def _message(self, line: _Line) -> bool:
        """Add the next line to an unfinished message, and the detail lines to a pydantic error. A signature that knows
        the line knows the exception."""
        if not line.text:
            return self.open
        self.missing -= 1
        detail, bracket, _ = line.text.strip().partition(" [type=")
        if detail.startswith("For further information") or self.chain is None:
            self.missing = 0
        else:
            last = self.chain.raised[-1]
            last.line += f" {detail}"
            last.known = last.known or line.known()
        if bracket or not self.missing:
            self.state = self.after_message
        return True

    def _close(self, line: _Line) -> bool:
        """Read the line that ends a traceback. Another one at the first column is part of it."""
        raised = Raised(line.text.strip(), line.number, process=line.process)
        if not (_EXCEPTION.match(raised.line) or _DETAIL.match(f" {raised.line}")):
            return True
        if raised.line.rstrip(":").endswith("AssertionError") and self.source.startswith("assert"):
            raised.line = f"{raised.line.rstrip(':')}: {self.source}"  # it has no message of its own
        raised.known = line.known()
        raised.frames = (self.outer, *self.frames) if self.outer else tuple(self.frames)
        self._forget_frames()
        if self.linked and self.chain:
            self.chain.raised.append(raised)
        else:
            self.give()
            self.chain = Chain([raised])
        # Ray prints the remote traceback within the message of its wrapper, so the cause follows.
        self.linked = "RayTaskError" in raised.line
        self.after_message = State.FRAMES if self.linked else State.OUTSIDE
        self.missing = _VALIDATION_LINES if _VALIDATION.search(raised.line) else bool(_UNFINISHED.search(raised.line))
        self.state = State.MESSAGE if self.missing else self.after_message
        return True

    def _forget_frames(self) -> None:
        self.frames.clear()
        self.outer = ""

    def give(self) -> None:
        """Give the chain away."""
        if self.chain:
            self.keep(self.chain)
        self.chain = None

    def end(self) -> None:
        """End the log. The source of the last frame tells what a traceback that is cut there raises."""
        match = _RAISES.match(self.source)
        if match and self.frames and self.state is not State.IGNORED and self.chain is None:
            line = f"{match['name']}: {match['message']}"
            self.chain = Chain([Raised(line, self.last[1], frames=tuple(self.frames))])
            self.frames.clear()
            self.state = State.OUTSIDE
        self.give()


_READERS: Mapping[State, Callable[[_Stream, _Line], bool]] = {
    State.OUTSIDE: _Stream._outside,
    State.HANDLED: _Stream._outside,
    State.IGNORED: _Stream._ignored,
    State.FRAMES: _Stream._in_frames,
    State.MESSAGE: _Stream._message,
}


@dataclass(slots=True)
class Tracebacks:
    """The tracebacks of one log so far."""

    _kinds: dict[tuple[str, bool], Chain] = field(default_factory=dict)
    _streams: dict[tuple[str, str], _Stream] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Return True while a traceback is incomplete."""
        return any(stream.open or stream.state is State.MESSAGE for stream in self._streams.values())

    def read(self, number: int, entry: LogEntry, known: Callable[[], bool]) -> bool:
        """Read the next line. Returns True if it belongs to a traceback. `known` is called for an exception line."""
        # A traceback through the logger has its level on every line, a bare one has none, so lines of other threads
        # between them do no harm. A traceback that is logged as a warning has been handled.
        if entry.level in NOT_FATAL:
            return False
        key = (entry.process, entry.level)
        if key not in self._streams:
            if len(self._streams) >= _STREAMS:
                self._streams.pop(next(iter(self._streams))).give()
            self._streams[key] = _Stream(self._keep)
        return self._streams[key].read(_Line(entry.text, number, entry.process, known))

    @property
    def unfinished(self) -> tuple[str, int] | None:
        """Return the last frame of a traceback that the log does not finish, with its line number, or None."""
        cut = [stream.last for stream in self._streams.values() if stream.cut]
        return max(cut, key=lambda last: last[1]) if cut else None

    def chains(self) -> list[Chain]:
        """Return one chain per kind, in the order of their first lines. Without any cause but the one that a wrapper
        quotes, that one counts."""
        for stream in self._streams.values():
            stream.end()
        chains = sorted(self._kinds.values(), key=lambda chain: chain.raised[0].number)
        return chains if any(chain.root for chain in chains) else [chain.unwrapped() for chain in chains]

    def lines(self) -> Iterator[str]:
        """Yield every exception line, chain by chain."""
        return (raised.line for chain in self.chains() for raised in chain.raised)

    def _keep(self, chain: Chain) -> None:
        key = (alike((chain.root or chain.raised[0]).line), chain.known)
        if key in self._kinds:
            self._kinds[key].count += 1
        elif len(self._kinds) < _KINDS:
            self._kinds[key] = chain


def alike(line: str) -> str:
    """Return a line without its numbers. Lines that differ only in numbers are of one kind."""
    return (_ADDRESS.sub("", line) if "0x" in line else line).translate(NO_DIGITS)
