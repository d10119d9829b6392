"""Untrusted text, made safe for one line of a message."""

from __future__ import annotations

MAX_CHARACTERS = 200


def quoted(text: object) -> str:
    """Return the repr of a value: quoted, escaped, and truncated to MAX_CHARACTERS."""
    text_repr = repr(text)
    return text_repr if len(text_repr) <= MAX_CHARACTERS else f"{text_repr[:MAX_CHARACTERS]}…"


def one_line(text: str) -> str:
    """Return a text as one line. A text that is too long or not printable is quoted and escaped."""
    line = " ".join(text.split())
    return line if line.isprintable() and len(line) <= MAX_CHARACTERS else quoted(line)
