"""The doctor: the root cause of a failed start, read from the engine's log.

The last line of a failed start is nearly always "Engine core initialization failed. See root cause
above". So known causes are looked for first (data/signatures.yml, in order of priority), and for an
unknown one the innermost exception of the first traceback that is not such a wrapper is taken.

Everything here is pure but for reading the packaged signatures.yml once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

UNRECOGNISED = "unrecognised"
GENERIC_RUNBOOK = "engine-failed-to-start.md"
GENERIC_FIX = (
    "read the log from this line upwards with `journalctl -u vllm@<deployment>.service -o cat` and compare "
    "the command that ran, /etc/vllm-spark/<deployment>/launch, with the recipe."
)

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# "(EngineCore pid=686) (RayWorkerWrapper pid=228, ip=10.77.0.2) ": vLLM puts its own prefix before the
# one that Ray put before a worker's line. One space only: what follows may be an indented frame.
_PROCESS = re.compile(r"\s*\((?P<process>[^()]{0,60}?\bpid=\d+|raylet|autoscaler)[^()]{0,80}\) ?")
_RANK = re.compile(r"\[(?P<process>rank\d+)\]: ?")  # torch.distributed, on tracebacks and C++ warnings
_LEVELS = "DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|SUCC"
_HEADER = re.compile(
    rf"""(?:
      (?P<vllm>{_LEVELS})[ ]\d\d-\d\d[ ]\d\d:\d\d:\d\d(?:[.,]\d+)?[ ]\[[^\]\s]+\][ ]?
    | (?P<uvicorn>{_LEVELS}):[ ]+
    | \d{{4}}-\d\d-\d\d[ ]\d\d:\d\d:\d\d,\d+(?:[ ]-[ ]|\s)(?P<ray>{_LEVELS})(?:[ ]-[ ]|\s)\S+:\d+[ ]--?[ ]
    | \[\d{{4}}-\d\d-\d\d[ ]\d\d:\d\d:\d\d,\d+[ ](?P<raylet>[DIWEF])[ \d]+\][ ]\S+:\d+:[ ]
    )""",
    re.VERBOSE,
)
_LEVEL_NAMES = {
    "WARN": "WARNING",
    "SUCC": "INFO",
    "D": "DEBUG",
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
} | {"F": "CRITICAL"}
_RAY_REPEAT = re.compile(r"\s*\[repeated \d+x across cluster\].*$")  # Ray's RAY_DEDUP_LOGS

_TRACEBACK = "Traceback (most recent call last):"
# What Python prints between an exception and the one raised because of it, or while handling it.
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*(?P<name>[A-Za-z_]\w*)(?:\([\w.]+\))?(?::\s|:?$)")
_ORDERLY = re.compile(r"SystemExit|KeyboardInterrupt|CancelledError")
# Exceptions that only say that another process or frame failed (v1/engine/utils.py and exceptions.py,
# v1/executor/multiproc_executor.py, Ray's wrapper of a remote exception), or an orderly exit.
_WRAPPER = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|EngineCore (?:failed to start|encountered a fatal error)"
    r"|WorkerProc (?:initialization failed|failed to start)|Worker failed with error"
    rf"|RayTaskError|ActorDiedError|{_ORDERLY.pattern}"
)
_VALIDATION = re.compile(r"ValidationError: \d+ validation errors? for ")
_VALIDATION_LINES = 2  # pydantic: the field, if there is one, then what is wrong with it
_USAGE_ERROR = re.compile(r"(?:[\w./-]+(?: [\w-]+)?: )?error: \S")  # argparse
_DOCKER_ERROR = re.compile(r"docker: \S|Error response from daemon: ")
_SERVING = "Application startup complete."
_NOT_FATAL = frozenset({"DEBUG", "INFO", "WARNING"})
_FATAL = frozenset({"ERROR", "CRITICAL"})
_SEEN_LIMIT = 300  # characters of the log line in a message: some vLLM errors list every choice there is


@dataclass(frozen=True, slots=True)
class Finding:
    """What the doctor says of a log. `fix` carries no "Fix:"; `runbook` is a file of docs/runbooks."""

    signature: str
    cause: str
    line: str
    fix: str
    runbook: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log: which process wrote it, at which level ("" if it says neither), and the text."""

    process: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Signature:
    """A known cause. Its texts are str.format templates over the match: {name}, {1}, {0} the whole."""

    id: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    runbook: str
    source: str
    example: str
    versions: str = ""


@dataclass(slots=True)
class _Raised:
    """An exception line of a traceback."""

    line: str


@dataclass(slots=True)
class _Stream:
    """Where one process is in printing tracebacks. A chain lists its exceptions innermost first."""

    chains: list[tuple[int, list[_Raised]]] = field(default_factory=list)
    open: bool = False
    linked: bool = False
    ignored: bool = False
    tail: int = 0


def parse(line: str) -> Entry:
    """Take one line of the journal apart. A bar redrawn with carriage returns counts as last drawn."""
    text = line.rstrip("\r\n")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    process = ""
    while match := _PROCESS.match(text) or _RANK.match(text):
        process = match["process"]
        text = text[match.end() :]
    level = ""
    if match := _HEADER.match(text):
        level = match[match.lastgroup or 0]
        text = text[match.end() :]
    if "across cluster]" in text:
        text = _RAY_REPEAT.sub("", text)
    return Entry(process, _LEVEL_NAMES.get(level, level), text)


def clean(line: str) -> str:
    """The message of a log line: no colours, process prefixes, level, date or source file."""
    return parse(line).text


def root_cause(lines: Sequence[str]) -> Finding | None:
    """Say why the start that these lines tell of failed; None where nothing in them failed.

    `lines` are one start's (one systemd invocation), oldest first: an older failure in them would count.
    """
    entries = [parse(line) for line in lines]
    return _known_cause(entries) or _unknown_cause(entries)


def explain(finding: Finding) -> str:
    """One message to an operator: cause, line seen, fix, runbook."""
    line = finding.line if len(finding.line) <= _SEEN_LIMIT else finding.line[:_SEEN_LIMIT] + " …"
    return f"{finding.cause} — seen: {line} Fix: {finding.fix} See docs/runbooks/{finding.runbook}"


@cache
def signatures() -> tuple[Signature, ...]:
    """Load the known causes in order of priority. Raises TypeError or re.error on a malformed file."""
    text = resources.files("vllm_spark").joinpath("data/signatures.yml").read_text(encoding="utf-8")
    return tuple(_signature(**entry) for entry in yaml.safe_load(text)["signatures"])


def _signature(*, id: str, pattern: str, **texts: str) -> Signature:  # noqa: A002 the file's own key
    return Signature(id=id, pattern=re.compile(pattern, re.MULTILINE), **texts)


def _known_cause(entries: Sequence[Entry]) -> Finding | None:
    # Lines of one process are put together: two ranks that fail at once interleave their tracebacks,
    # and a signature may span lines.
    text = "\n".join(entry.text for entry in sorted(entries, key=lambda entry: entry.process))
    for signature in signatures():
        if match := signature.pattern.search(text):
            return _finding(signature, match)
    return None


def _finding(signature: Signature, match: re.Match[str]) -> Finding:
    values = [match[0], *match.groups(default="")]
    names: dict[str, Any] = match.groupdict(default="")
    return Finding(
        signature=signature.id,
        # A pattern's alternatives leave groups empty, and so gaps in the sentence.
        cause=" ".join(signature.cause.format(*values, **names).split()),
        line=_line_at(match.string, match.start()),
        fix=signature.fix.format(*values, **names),
        runbook=signature.runbook,
    )


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return text[start : end if end >= 0 else len(text)].strip()


def _unknown_cause(entries: Sequence[Entry]) -> Finding | None:
    relevant = list(_of_the_engine(entries))
    exceptions = _exceptions(relevant)
    if exception := next((line for line in exceptions if not _WRAPPER.search(line)), None):
        name = exception.partition(":")[0].rpartition(".")[2]
        return _unrecognised(f"the engine stopped with a {name} that no signature knows", exception)
    texts = [entry.text.strip() for entry in relevant if entry.level not in _NOT_FATAL]
    if usage := _first(texts, _USAGE_ERROR):
        return _unrecognised("the engine refused its command line", usage)
    if refusal := _first(texts, _DOCKER_ERROR):
        return _unrecognised("Docker did not start the container", refusal)
    if errors := [entry.text.strip() for entry in relevant if _is_error(entry)]:
        return _unrecognised("the engine logged an error that no signature knows", errors[-1])
    if wrapper := next((line for line in exceptions if not _ORDERLY.search(line)), None):
        return _unrecognised("a process of the engine ended without saying why", wrapper)
    return None


def _unrecognised(cause: str, line: str) -> Finding:
    return Finding(UNRECOGNISED, cause, line, GENERIC_FIX, GENERIC_RUNBOOK)


def _first(texts: Iterable[str], pattern: re.Pattern[str]) -> str | None:
    return next((text for text in texts if pattern.match(text)), None)


def _is_error(entry: Entry) -> bool:
    return entry.level in _FATAL and bool(entry.text.strip()) and not _WRAPPER.search(entry.text)


def _of_the_engine(entries: Iterable[Entry]) -> Iterable[Entry]:
    """Leave out what the API server says once it serves: that is about a request, not about the start."""
    serving = False
    for entry in entries:
        serving = serving or entry.text.startswith(_SERVING)
        if not (serving and entry.process.lower().startswith("apiserver")):
            yield entry


def _exceptions(entries: Iterable[Entry]) -> list[str]:
    """The exception lines of all tracebacks: the first chain's first, each chain from its cause outwards."""
    streams: dict[tuple[str, str], _Stream] = {}
    for index, entry in enumerate(entries):
        # A traceback through the logger carries its level on every line, a bare one none, so lines of
        # other threads between them do not disturb. One logged as a warning has been dealt with.
        if entry.level not in _NOT_FATAL:
            stream = streams.setdefault((entry.process, entry.level), _Stream())
            _follow(stream, index, entry.text)
    chains = sorted((chain for stream in streams.values() for chain in stream.chains), key=lambda chain: chain[0])
    return [raised.line for _, chain in chains for raised in chain]


def _follow(stream: _Stream, index: int, text: str) -> None:
    """Move a stream on by one line."""
    if text.startswith(_TRACEBACK):
        stream.open, stream.ignored, stream.tail = not stream.ignored, False, 0
    elif text.startswith(_LINKS):
        stream.linked, stream.tail = True, 0
    elif stream.tail and text:
        _complete(stream, text)
    elif stream.open and text[:1].strip():
        _close(stream, index, text)
    elif text.startswith("Exception ignored in"):  # Python's own note of a failing __del__: never a cause
        stream.ignored = True


def _close(stream: _Stream, index: int, text: str) -> None:
    """Take the line that ends a traceback."""
    if not _EXCEPTION.match(text):
        return
    raised = _Raised(text.strip())
    if stream.linked and stream.chains:
        stream.chains[-1][1].append(raised)
    else:
        stream.chains.append((index, [raised]))
    # Ray prints the remote traceback within the message of its wrapper: the cause is still to come.
    stream.open = stream.linked = "RayTaskError" in text
    stream.tail = _VALIDATION_LINES if _VALIDATION.search(text) else 0


def _complete(stream: _Stream, text: str) -> None:
    """Add to a pydantic error the lines that say what is wrong: its first only counts the errors."""
    stream.tail -= 1
    detail, bracket, _ = text.strip().partition(" [type=")
    if detail.startswith("For further information"):
        stream.tail = 0
        return
    stream.chains[-1][1][-1].line += f" {detail}"
    if bracket:
        stream.tail = 0
