"""Texts for messages: untrusted text made safe for one line, and the names that a misspelt one may mean."""

from __future__ import annotations

import difflib
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


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that `name` may mean: those that begin with it, else the one that is most similar, else none.

    A name with which all others begin stands for them."""
    names = list(known)
    begun = [each for each in names if name and each.startswith(name)]
    shortest = min(begun, key=len, default="")
    if begun and all(each.startswith(shortest) for each in begun):
        return [shortest]
    return begun or difflib.get_close_matches(name, names, n=1)


def choice(names: Iterable[str]) -> str:
    """Return the end of a fix: the name to use, or the names to choose from."""
    quoted_names = [repr(name) for name in names]
    return f"name {quoted_names[0]}." if len(quoted_names) == 1 else f"name one of {', '.join(quoted_names)}."
