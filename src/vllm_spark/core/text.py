"""Text from outside made safe for one line of a message."""

from __future__ import annotations

SHOWN_CHARACTERS = 200


def shown(text: object) -> str:
    """A text in quotes, escaped and short enough for a line."""
    quoted = repr(text)
    return quoted if len(quoted) <= SHOWN_CHARACTERS else f"{quoted[:SHOWN_CHARACTERS]}…"


def plain(text: str) -> str:
    """A text as one line that a terminal takes for nothing else; in quotes, where it holds more than that."""
    line = " ".join(text.split())
    return line if line.isprintable() and len(line) <= SHOWN_CHARACTERS else shown(line)
