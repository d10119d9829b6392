"""Plain data: a document of built-in types alone, within limits of depth, size and range.

Ansible hands over subclasses of str, int and list, and PyYAML yields dates, sets and infinity. Code that gets plain
data meets none of them, so it may compare, hash and write any value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.core.fault import Fault

# The deepest document of the toolkit has eight levels, and the longest a few hundred values. The recursive code that
# reads a document later needs a few frames per level.
MAX_DEPTH = 32
MAX_NODES = 20_000
# The largest integer of the engine, of JSON's other readers and of systemd.
MAX_INTEGER = 2**63 - 1
MAX_SHOWN = 60

# A key of a map or an index of a list, from the top of the document.
Path = tuple[str | int, ...]

KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "a text"),
    (type(None), "null"),
    (Mapping, "a map"),
    (Sequence, "a list"),
)


class DocumentError(Exception):
    """Raised for a document that cannot be read. Holds the fault; `path` is its place in the document if it has one."""

    def __init__(self, what: str, expected: str, path: Path = ()) -> None:
        self.fault = Fault(what, expected)
        self.path = path
        super().__init__(str(self.fault))


def kind_of(value: object) -> str:
    """Return the kind of a value in the words of a message, e.g. `a text`."""
    return next((name for type_, name in KINDS if isinstance(value, type_)), f"a {type(value).__name__}")


def plain(value: object, max_nodes: int = MAX_NODES) -> Any:
    """Return a copy of a document with built-in types alone. Raises DocumentError for the first value without one."""
    return _Copier(max_nodes).copy(value, ())


def checked_text(text: str, path: Path = ()) -> str:
    """Return a text as str. Raises DocumentError for a NUL, and for half of a surrogate pair, which UTF-8 lacks."""
    if "\0" in text:
        raise DocumentError(f"{_short(text)} has a NUL character", "a text that a command line can hold", path)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise DocumentError(f"{_short(text)} has half of a surrogate pair", "a text that UTF-8 can hold", path)
    return str.__str__(text)


def checked_number(number: float, path: Path = ()) -> float:
    """Return an int or a float. Raises DocumentError if it is not finite, or larger than MAX_INTEGER."""
    if isinstance(number, float):
        if not math.isfinite(number):
            raise DocumentError(f"{number}", "a finite number", path)
        return float(number)
    if abs(number) > MAX_INTEGER:
        raise DocumentError(f"an integer of {number.bit_length()} bits", "an integer of at most 63 bits", path)
    return int(number)


class _Copier:
    """Copies one document and counts its values."""

    def __init__(self, max_nodes: int) -> None:
        self.nodes = 0
        self.max_nodes = max_nodes

    def copy(self, value: object, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > self.max_nodes:
            raise DocumentError(
                f"more than {self.max_nodes} values", "a document of this toolkit; aliases count in full"
            )
        if len(path) > MAX_DEPTH:
            raise DocumentError(f"nested deeper than {MAX_DEPTH} levels", "a document of this toolkit", path[:2])
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return checked_text(value, path)
        if isinstance(value, int | float):
            return checked_number(value, path)
        if isinstance(value, Mapping):
            return {self._key(key, path): self.copy(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, (*path, index)) for index, item in enumerate(value)]
        raise DocumentError(f"{_short(str(value))}, which is {kind_of(value)}", "a text: put it in quotes", path)

    @staticmethod
    def _key(key: object, path: Path) -> str:
        if not isinstance(key, str):
            raise DocumentError(f"key {_short(str(key))} is {kind_of(key)}", "a text as key: put it in quotes", path)
        return checked_text(key, path)


def _short(text: str) -> str:
    shown = ascii(text) if not text.isprintable() else text
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 1]}…"
