"""Read one response with server-sent events as it arrives: its head, its frames, its lines, its events.

The end of a stream is one that was read: the event `[DONE]`, the last frame, the length of the head. Bytes that look
like an end end nothing. Sources: RFC 9112 (HTTP/1.1) and the HTML standard of WHATWG, 9.2.6 (event streams).

h11 and httpx-sse do the same in two parts. Neither is on a Spark, whose programs have the standard library alone, and
neither says when a line has arrived (docs/decisions/0013). h11 is the witness of this module in its tests.
"""

from __future__ import annotations

import http.client
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

# done: the event [DONE]. whole: the last byte that the head or the frames announce. closed: the connection ended, and
# nothing had announced where. cut: it ended before that. broken: what arrived is no HTTP.
End = Literal["", "done", "whole", "closed", "cut", "broken"]

DONE = b"[DONE]"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST_HEAD_BYTES = 64 << 10
MOST_LINE_BYTES = 4 << 20
# A longer length than any body has; Python reads no number of more than 4,300 digits.
MOST_LENGTH_DIGITS = 18
# The part of a reply without a stream that a message shows.
KEPT_BYTES = 2000
QUOTED = 200  # characters of a reply in a message

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_START = re.compile(rb"HTTP/1\.[01] (\d{3})(?: .*)?$")
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
_NO_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)


@dataclass(frozen=True, slots=True)
class Event:
    """A server-sent event. `at` is the time.perf_counter() at which its last line with data had arrived."""

    at: float
    data: bytes
    name: bytes = b""


class BrokenReplyError(Exception):
    """A reply that is no HTTP. The text says what is wrong."""


class Reader:
    """One response. `status` is 0 before its head. `body` is the beginning of a reply without events, `problem` says
    why a response is broken or cannot be read."""

    def __init__(self) -> None:
        self.status = 0
        self.head_at = 0.0
        self.fields: dict[str, str] = {}
        self.events: list[Event] = []
        self.body = b""
        self.end: End = ""
        self.problem = ""
        self._held = b""  # of the head, or of the line before a frame
        self._chunked = False
        self._left: int | None = None  # bytes of the body, or of the present frame; None: until the connection ends
        self._stream = _Lines(self.events)

    def feed(self, at: float, data: bytes) -> bool:
        """Read what has arrived at a time. Returns True if the response has ended."""
        try:
            if not self.status:
                data = self._head(at, data)
            if self.status and not self.end:
                for content in self._unframed(data):
                    self._content(at, content)
        except BrokenReplyError as error:
            self.end, self.problem = "broken", str(error)
        return bool(self.end)

    def close(self) -> None:
        """Note that the connection has ended."""
        if not self.end:
            known = self._chunked or self._left is not None or not self.status
            self._ended("cut" if known else "closed")

    def _ended(self, how: End) -> None:
        # Without the empty line that an event needs, [DONE] at the end of a body can mean nothing else.
        self.end = "done" if how != "cut" and self._stream.pending() == DONE else how

    def _head(self, at: float, data: bytes) -> bytes:
        """Read the head, without those of interim responses, and return what follows it."""
        self._held += data
        while found := _HEAD_END.search(self._held):
            start, _, fields = self._held[: found.start()].lstrip(b"\r\n").partition(b"\n")
            self._held = self._held[found.end() :]
            status = _status(start.rstrip(b"\r"))
            if status >= HTTPStatus.OK:
                self.status, self.head_at, self.fields = status, at, _fields(fields)
                self._framing()
                rest, self._held = self._held, b""
                return rest
        if len(self._held) > MOST_HEAD_BYTES:
            raise BrokenReplyError(f"a head of more than {MOST_HEAD_BYTES} bytes")
        begin = self._held.lstrip(b"\r\n")[:5]
        if not b"HTTP/".startswith(begin):
            raise BrokenReplyError(f"no HTTP: {quote(self._held)}")
        return b""

    def _framing(self) -> None:
        codings = [one.strip().lower() for one in self.fields.get("transfer-encoding", "").split(",")]
        self._chunked = codings[-1] == "chunked"
        encodings = {*codings[:-1], self.fields.get("content-encoding", "").strip().lower()} - {"", "identity"}
        if encodings:
            self.problem = f"the body is encoded: {', '.join(sorted(encodings))}"
        length = self.fields.get("content-length", "").strip()
        if self.status in _NO_BODY:
            self._ended("whole")
        elif self._chunked:
            self._left = 0
        elif length.isdecimal() and length.isascii():
            if len(length) > MOST_LENGTH_DIGITS:
                raise BrokenReplyError(f"a Content-Length of {len(length)} digits")
            self._left = int(length)
            if not self._left:
                self._ended("whole")

    def _unframed(self, data: bytes) -> Iterator[bytes]:
        """Yield the content in what has arrived of the body, and note its end."""
        if self._chunked:
            yield from self._frames(data)
        elif self._left is None:
            yield data
        else:
            yield data[: self._left]
            self._left -= min(self._left, len(data))
            if not self._left and not self.end:
                self._ended("whole")

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """Yield the content of a chunked transfer (RFC 9112, section 7.1)."""
        held = self._held + data
        while held and not self.end:
            if self._left:
                content, held = held[: self._left], held[self._left :]
                self._left -= len(content)
                yield content
                continue
            line, found, rest = held.partition(b"\n")
            if not found:
                break
            held, line = rest, line.strip()
            if line:  # an empty line ends the frame before
                self._left = _size(line)
                if not self._left:
                    self._ended("whole")
        self._held = held
        if len(held) > MOST_HEAD_BYTES:
            raise BrokenReplyError(f"no size of a frame: {quote(held)}")

    def _content(self, at: float, content: bytes) -> None:
        if self.end:
            return
        if not self.events and len(self.body) < KEPT_BYTES:
            self.body += content[:KEPT_BYTES]
        if self.status != HTTPStatus.OK:
            if len(self.body) >= KEPT_BYTES:
                self._ended("whole")
        elif self._stream.feed(at, content):
            self.end = "done"


class _Lines:
    """The lines of an event stream. Its events are appended to a list."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._line = b""  # the beginning of a line
        self._begun = False
        self._after_return = False
        self._data: list[bytes] = []
        self._name = b""
        self._at = 0.0

    def feed(self, at: float, content: bytes) -> bool:
        """Read what has arrived. Returns True after the event [DONE]. Raises BrokenReplyError."""
        if self._after_return and content[:1] == b"\n":  # CR LF that was cut
            content = content[1:]
        if not content:
            return False
        self._after_return = content[-1:] == b"\r"
        lines = (self._line + content).splitlines(keepends=True)
        self._line = b"" if lines[-1][-1:] in b"\r\n" else lines.pop()
        if len(self._line) > MOST_LINE_BYTES:
            raise BrokenReplyError(f"a line of more than {MOST_LINE_BYTES} bytes: {quote(self._line)}")
        return any(self._read(at, line.rstrip(b"\r\n")) for line in lines)

    def pending(self) -> bytes:
        """Return the data of an event whose empty line has not arrived."""
        name, _, value = self._line.partition(b":")
        return b"\n".join([*self._data, value] if name == b"data" else self._data).strip()

    def _read(self, at: float, line: bytes) -> bool:
        """Read a line. Returns True if it ends the event [DONE]."""
        if not self._begun:
            self._begun, line = True, line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name in (b"data", b"error"):  # llama-server of 2024 wrote a field `error`
            self._name = name if name == b"error" else self._name
            self._data.append(value.removeprefix(b" "))
            self._at = at
        elif name == b"event":
            self._name = value.removeprefix(b" ")
        return False

    def _dispatch(self) -> bool:
        data, name, self._data, self._name = b"\n".join(self._data), self._name, [], b""
        if data.strip() == DONE:
            return True
        if data:
            self._events.append(Event(self._at, data, name))
        return False


def quote(body: bytes) -> str:
    """Return the text of a body in one line, cut after QUOTED characters."""
    text = " ".join(body[: 8 * QUOTED].decode("utf-8", "replace").split())
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}…"


def _status(line: bytes) -> int:
    found = _START.match(line)
    if not found:
        raise BrokenReplyError(f"no HTTP: {quote(line)}")
    return int(found[1])


def _fields(lines: bytes) -> dict[str, str]:
    """Return the fields of a head by their names in small letters; those that are repeated are joined."""
    try:
        parsed = http.client.parse_headers(io.BytesIO(lines + b"\r\n\r\n"))
    except http.client.HTTPException as error:
        raise BrokenReplyError(f"a head that cannot be read: {error}") from error
    fields: dict[str, str] = {}
    for name, value in parsed.items():
        fields[name.lower()] = f"{fields[name.lower()]}, {value}" if name.lower() in fields else str(value)
    return fields


def _size(line: bytes) -> int:
    """Return the size of a frame, without its extensions."""
    size = line.partition(b";")[0].strip()
    if not _SIZE.fullmatch(size):
        raise BrokenReplyError(f"the size of a frame is {quote(line)!r}")
    return int(size, 16)
