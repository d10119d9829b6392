"""Opening of a log: gzip by magic number, UTF-16 by byte order mark, CR alone as line end, binary files refused."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from typing import BinaryIO, cast

from vllm_spark.core.refusal import Fix
from vllm_spark.doctor.log_lines import ByteStream

SAMPLE_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_TAR = (257, b"ustar")
_MARKS = ((codecs.BOM_UTF8, ""), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# Known binary files: magic number, name, and the command that prints their text, a template.
_BINARY = (
    (b"LPKSHHRH", "a journal file of systemd", "journalctl --file {file} -o cat | vllm-spark doctor -"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "zstdcat {file} | vllm-spark doctor -"),
    (b"\xfd7zXZ\x00", "compressed with xz", "xzcat {file} | vllm-spark doctor -"),
    (b"BZh", "compressed with bzip2", "bzcat {file} | vllm-spark doctor -"),
    (b"PK\x03\x04", "a zip archive", "unzip -p {file} | vllm-spark doctor -"),
)
_OTHER = "name the text of the log: `journalctl -u UNIT -o cat | vllm-spark doctor -`."
_CONTROLS = frozenset(map(chr, range(32))) - frozenset("\t\n\r\x1b\b\f\v") | {"\x7f", "�"}
_BINARY_SHARE = 0.1  # of the characters; a text with a wrong encoding stays below it


class NotTextError(Exception):
    """Raised for a log that is not text: what it is, and the command that prints its text. `read` of command.py fills
    its {file}."""

    def __init__(self, what: str, fix: str | Fix) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


class _Transcoded:
    """A stream of UTF-8 with LF from a stream of another encoding or with CR alone."""

    def __init__(self, stream: ByteStream, encoding: str, *, bare_cr: bool) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._bare_cr = bare_cr

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes. No bytes mean the end."""
        while data := self._stream.read(size):
            if text := self._decoder.decode(data):
                return (text.replace("\r", "\n") if self._bare_cr else text).encode()
        return b""


class _Prefixed:
    """A stream whose first bytes were already read."""

    def __init__(self, first: bytes, stream: ByteStream) -> None:
        self._first = first
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        if self._first:
            data, self._first = self._first, b""
            return data
        return self._stream.read(size)


class _Unzipped:
    """The content of a gzip stream. Raises NotTextError where the stream is cut or damaged."""

    def __init__(self, first: bytes, stream: BinaryIO) -> None:
        raw = cast(io.RawIOBase, _Raw(_Prefixed(first, stream)))
        self._stream = gzip.GzipFile(fileobj=io.BufferedReader(raw))

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        try:
            return self._stream.read(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise NotTextError(f"not a complete gzip file ({error})", "copy the file again.") from error


class _Raw(io.RawIOBase):
    """The raw stream that the gzip module reads from."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._rest = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        """Fill the buffer."""
        self._rest = self._rest or self._stream.read(len(buffer))
        data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)


def text_of(stream: BinaryIO) -> ByteStream:
    """Return the text of a log as UTF-8 with LF. Raises NotTextError if it is not text, also while it is read."""
    first = stream.read(SAMPLE_BYTES)
    source: ByteStream = stream
    if first.startswith(_GZIP):
        source = _Unzipped(first, stream)
        first = source.read(SAMPLE_BYTES)
    mark, encoding = next(((mark, name) for mark, name in _MARKS if first.startswith(mark)), (b"", ""))
    whole = _Prefixed(first[len(mark) :], source)
    sample = first[len(mark) :].decode(encoding or "utf-8", "replace")
    _refuse_binary(first, sample)
    bare_cr = "\n" not in sample and any(part.strip() for part in sample.split("\r")[1:])
    return _Transcoded(whole, encoding or "utf-8", bare_cr=bare_cr) if encoding or bare_cr else whole


def _refuse_binary(first: bytes, sample: str) -> None:
    """Raise NotTextError if the first bytes of a file are not text."""
    for magic, name, fix in _BINARY:
        if first.startswith(magic):
            raise NotTextError(f"not text ({name})", Fix(fix))
    if first[_TAR[0] :].startswith(_TAR[1]):
        raise NotTextError("not text (a tar archive)", "name a bundle of collect (.tar.gz), or the log in the archive.")
    text = sample.replace("\x00", "")
    strange = sum(1 for character in text if character in _CONTROLS)
    if (sample and not text) or strange > _BINARY_SHARE * max(len(text), 1):
        share = f"{100 * strange // max(len(text), 1)} % of its first {len(first)} bytes are not characters of a text"
        raise NotTextError(f"not text ({share if text else 'only NUL bytes'})", _OTHER)
