"""Reading of the documents that an operator wrote: YAML and JSON files. Every fault is a DocumentError."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any, NoReturn

from vllm_spark.core import strict_yaml
from vllm_spark.core.plain_data import MAX_NODES, DocumentError, plain

# Ten times the longest file of the catalogue. PyYAML reads such a file in about a second.
MAX_YAML_BYTES = 128 * 1024
# Facts of a host, and reports of a verification.
MAX_JSON_BYTES = 4 << 20

# The four-byte marks come first, because the one of UTF-32-LE starts with the one of UTF-16-LE.
MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def read_yaml(file: Path) -> Any:
    """Return the document of a YAML file as plain data; None for an empty file. Raises DocumentError."""
    return strict_yaml.load(read_text(file, MAX_YAML_BYTES))


def read_json(file: Path) -> Any:
    """Return the document of a JSON file as plain data. Raises DocumentError."""
    return json_document(read_text(file, MAX_JSON_BYTES))


def json_document(text: str, max_nodes: int = MAX_NODES) -> Any:
    """Return the document of a JSON text of at most `max_nodes` values as plain data. Raises DocumentError."""
    try:
        return plain(json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant), max_nodes)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(f"{place}: not JSON, {error.msg}", "a JSON document") from error
    except RecursionError as error:
        raise DocumentError("nested too deep", "a JSON document of this toolkit") from error
    except ValueError as error:
        # A number of more digits than Python reads.
        raise DocumentError("a number with too many digits", "an integer of at most 63 bits") from error


def read_text(file: Path, limit: int) -> str:
    """Return the text of a regular file of UTF-8 and at most `limit` bytes. Raises DocumentError."""
    try:
        if file.is_dir():
            raise DocumentError("a folder", "a file")
        if file.exists() and not file.is_file():
            raise DocumentError("not a regular file", "a file")
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DocumentError(f"cannot be read: {reason}", "a readable file") from error
    if len(content) > limit:
        raise DocumentError(f"more than {limit // 1024} KiB", f"a file of at most {limit // 1024} KiB")
    return _decoded(content)


def _decoded(content: bytes) -> str:
    encoding = next((name for mark, name in MARKS if content.startswith(mark)), "")
    if encoding:
        raise DocumentError(f"the encoding is {encoding}", "UTF-8: save the file with this encoding")
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise DocumentError(f"line {line}: a NUL byte", "a text file in UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        what = f"line {line}: byte 0x{content[error.start]:02x} is not UTF-8"
        raise DocumentError(what, "UTF-8: save the file with this encoding") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise DocumentError(f"key {twice} occurs twice", "every key once")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise DocumentError(name, "a finite number")
