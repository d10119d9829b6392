"""Untrusted text, made safe for one line of a message."""

from __future__ import annotations

MAX_CHARACTERS = 200


def shown(text: object) -> str:
    """Return the repr of a value: quoted, escaped, and truncated to MAX_CHARACTERS."""
    quoted = repr(text)
    return quoted if len(quoted) <= MAX_CHARACTERS else f"{quoted[:MAX_CHARACTERS]}…"


def plain(text: str) -> str:
    """Return a text as one line. A text that is too long or not printable is quoted and escaped."""
    line = " ".join(text.split())
    return line if line.isprintable() and len(line) <= MAX_CHARACTERS else shown(line)
