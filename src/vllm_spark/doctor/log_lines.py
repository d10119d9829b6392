"""Log lines without their carriers and without the prefixes of Ray and vLLM, read in blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from vllm_spark.doctor import carriers, failure_lines

BLOCK_BYTES = 256 * 1024
LINE_BYTES = BLOCK_BYTES  # kept of a line that is longer than a block
LINE_CHARACTERS = 8 * 1024  # parsed of a line, so that no pattern runs away on an endless one

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
# "(EngineCore pid=686) (RayWorkerWrapper pid=228, ip=10.77.0.2) ": vLLM adds its own prefix before Ray's prefix of a
# worker's line. The pattern takes one space only, because the rest can be an indented frame.
_PROCESS = re.compile(r"\s*\((?P<process>[^()]{0,60}?\bpid=\d+|raylet|autoscaler)[^()]{0,80}\) ?")
_RANK = re.compile(r"\[(?P<process>rank\d+)\]: ?")  # torch.distributed, on tracebacks and C++ warnings
_LEVELS = "DEBUG|V?INFO|WARN|WARNING|ERROR|CRITICAL|SUCC|ERR|PANIC"
# `logrus` is the Docker engine's: its errors are judged by their text, as those of a program without levels.
_HEADER = re.compile(
    rf"""(?:
      (?P<vllm>{_LEVELS})[ ]\d\d-\d\d[ ]\d\d:\d\d:\d\d(?:[.,]\d+)?[ ]\[?[^\]\s]+\][ ]?
    | (?P<undated>{_LEVELS})[ ]\[[\w./]+\.py(?::\d+)?\][ ]
    | (?P<uvicorn>{_LEVELS}):[ ]+
    | \d{{4}}-\d\d-\d\d[ ]\d\d:\d\d:\d\d,\d+(?:[ ]-[ ]|\s)(?P<ray>{_LEVELS})(?:[ ]-[ ]|\s)\S+:\d+[ ]--?[ ]
    | \[\d{{4}}-\d\d-\d\d[ ]\d\d:\d\d:\d\d,\d+[ ](?P<raylet>[DIWEFC])[ \d]+\][ ]\S+:\d+:[ ]+
    | time="[^"]*"[ ]level=(?P<logrus>debug|info|warning)[ ]
    | (?P<glog>[EF])\d{{4}}[ ]\d\d:\d\d:\d\d\.\d+[ ]+\d+[ ]\S+:\d+\][ ]
    | \[(?P<c10d>[DIWEF])\d{{3,4}}[ ]\d\d:\d\d:\d\d\.\d+[ ]\S+:\d+\][ ]
    )""",
    re.VERBOSE,
)
# NCCL reports what it tries in lines of its own format. Signatures read their whole text, so only the level is taken.
_NCCL = re.compile(r"\S+:\d+:\d+ \[\d+\] NCCL (?:INFO|TRACE|VERSION) ")
_RAY_REPEAT = re.compile(r"\s*\[repeated \d+x across cluster\].*$")  # Ray's RAY_DEDUP_LOGS


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log: its process and its level (each "" if unknown), and the text."""

    process: str
    level: str
    text: str


class ByteStream(Protocol):
    """What a log is read from."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, none at the end."""


def parse(line: str, carrier: re.Pattern[str] | None = None) -> LogEntry:
    """Parse one line of the journal. Of a progress bar with carriage returns only the last state counts.

    `carrier` is the learnt prefix of the log. A message of a JSON logger can hold several lines.
    """
    text = line.rstrip("\r\n")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = carriers.strip(text, carrier)
    level = ""
    if text[:1] == "{" and (message := carriers.from_json(text)):
        text, level = message
        text = carriers.strip(_ANSI.sub("", text), carrier)
    process = ""
    while match := _PROCESS.match(text) or _RANK.match(text):
        process = match["process"]
        text = text[match.end() :]
    if match := _HEADER.match(text):
        level = match[match.lastgroup or 0].upper()
        text = text[match.end() :]
    elif not level and _NCCL.match(text):
        level = "INFO"
    if "across cluster]" in text:
        text = _RAY_REPEAT.sub("", text)
    return LogEntry(process, failure_lines.LEVELS.get(level, level), text[:LINE_CHARACTERS])


def clean(line: str) -> str:
    """Return the message of a log line without colours, process prefixes, level, date and source file."""
    return parse(line).text


def blocks(stream: ByteStream) -> Iterator[str]:
    """Yield whole lines in blocks of about 256 KiB, so that memory use does not grow with the log."""
    rest = b""
    while data := stream.read(BLOCK_BYTES):
        data = rest + data
        end = data.rfind(b"\n") + 1
        rest = data[end:][:LINE_BYTES]
        if end:
            yield _text(data[:end])
    if rest:
        yield _text(rest)


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if "\x00" in text:  # a file system fills a file with NUL after a crash; UTF-16 without its mark has them
        text = text.replace("\x00", "")
    return _ANSI.sub("", text) if "\x1b" in text else text
