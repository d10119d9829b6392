"""State of the server in a log: it starts, it serves, it is stopped from outside, or it ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm_spark.doctor import failure_lines
from vllm_spark.doctor.log_lines import LogEntry
from vllm_spark.doctor.signatures import is_harmless
from vllm_spark.doctor.tracebacks import NOT_FATAL

_AT_WORK = frozenset({"INFO", "WARNING"})
_PROCESSES = 500


@dataclass(slots=True)
class ServerState:
    """What the lines so far say of the server. A journal can hold several starts; the last one counts.

    `serving`: it started or answered. `stopped`: the number of the line that stopped it from outside, or None.
    `over`: the number of the line that completed this stop, or None; what follows belongs to the next start.
    `ended`: the last line, with its number, that only says that a process ended, or None.
    `request`: a request was refused; the traceback of that request does not end the server.
    `started` and `answered`: the numbers of the last lines that begin a start, and that show a server at work.
    """

    serving: bool = False
    stopped: int | None = None
    over: int | None = None
    ended: tuple[str, int] | None = None
    request: bool = False
    started: int = 0
    answered: int = 0
    _usage: bool = False
    _at_work: dict[str, int] = field(default_factory=dict)  # by process: its last line that is not an error

    def read(self, number: int, entry: LogEntry, text: str) -> None:
        """Read the next line of a log. `text` is the entry's text without the spaces around it."""
        if failure_lines.SERVING.match(text) or failure_lines.ANSWERED.match(text):
            self.serving, self.ended, self.stopped, self.over = True, None, None, None
            self.answered = number
        elif self.serving and failure_lines.STOPPED.search(text):
            self.stopped = number if self.stopped is None else self.stopped
        elif failure_lines.STARTED.match(text) or (
            failure_lines.STARTED_OR_WITHIN.match(text) and (self.serving or self.ended)
        ):
            self.serving, self.stopped, self.over, self.started = False, None, None, number
        elif self.stopping and text.startswith(failure_lines.STOP_COMPLETE):
            self.over = number
        self.request = self.request or bool(failure_lines.REQUEST.match(text))
        ended = entry.level not in NOT_FATAL and failure_lines.ENDED.search(text)
        if ended and not self.stopping and not is_harmless(text):
            self.ended = (text, number)
        if entry.level in _AT_WORK and entry.process and not failure_lines.ENDING.search(text):
            self._note_work(entry.process, number)
        self._usage = self._usage or text.startswith("usage: ")

    @property
    def stopping(self) -> bool:
        """Return True between the line that stops the server and the line that says that it has stopped."""
        return self.stopped is not None and self.over is None

    def counts(self, number: int) -> bool:
        """Return True if an exception at this line is a failure, and not a part of an orderly stop."""
        return self.stopped is None or number < self.stopped or (self.over is not None and number > self.over)

    def survived(self, number: int) -> bool:
        """Return True if the server answered after an error at this line of its last start: a call failed, and the
        engine goes on."""
        return self.started < number < self.answered

    def outlived(self, process: str, number: int) -> bool:
        """Return True if this process went on after an error at this line. Without its name that is not known."""
        return self._at_work.get(process, 0) > number

    def _note_work(self, process: str, number: int) -> None:
        if process in self._at_work or len(self._at_work) < _PROCESSES:
            self._at_work[process] = number

    def refusal(self, text: str) -> str:
        """Return what refused to start the engine according to this line, or an empty text."""
        if failure_lines.PROGRAM_ERROR.match(text) or (self._usage and failure_lines.USAGE_ERROR.match(text)):
            return "the engine refused its command line"
        return "Docker did not start the container" if failure_lines.DOCKER_ERROR.match(text) else ""
