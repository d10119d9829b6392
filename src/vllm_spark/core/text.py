"""Texts for messages: untrusted text made safe for one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CHARACTERS = 200
DIGEST_DIGITS = 12
# Characters that a terminal obeys instead of printing them: C0 and C1 without tab and line feed, and those that change
# the direction of the text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def quoted(text: object) -> str:
    """Return the repr of a value: quoted, escaped, and truncated to MAX_CHARACTERS."""
    text_repr = repr(text)
    return text_repr if len(text_repr) <= MAX_CHARACTERS else f"{text_repr[:MAX_CHARACTERS]}…"


def one_line(text: str) -> str:
    """Return a text as one line. A text that is too long or not printable is quoted and escaped."""
    line = " ".join(text.split())
    return line if line.isprintable() and len(line) <= MAX_CHARACTERS else quoted(line)


def printable(text: str) -> str:
    """Return a text of several lines with every character escaped that a terminal would obey, e.g. \\x1b."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def short_digest(image: str) -> str:
    """Return the first digits of the digest of an image, the same ones in every output."""
    return image.rpartition(":")[2][:DIGEST_DIGITS]


def with_article(word: str) -> str:
    """Return a word behind its article, by its first letter: `a KeyError`, `an OSError`."""
    return f"{'an' if word[:1].lower() in tuple('aeiou') else 'a'} {word}"


def one_of(names: Iterable[str], otherwise: str) -> str:
    """Return the names that are expected, or what says why there is none."""
    listed = ", ".join(names)
    return f"one of {listed}" if listed else otherwise
