#!/usr/bin/env python3
"""The commands that a text of the toolkit prints, and those of them that only look.

    printed.py FILE [WORD...]    (with -K: the password of sudo is read by ansible-playbook from the terminal)

Prints each read-only command of the file, once. Ends with status 1 if a command has a placeholder, and names it, or if
none is printed. A WORD must be in each of them, such as -K.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# A command in backticks, or behind Fix and Next up to the full stop, or alone on the line below a Next.
TOOLS = r"(?:ansible-playbook|vllm-spark|ssh|sudo|journalctl|systemctl|ping|curl) "
IN_TEXT = re.compile(
    rf"`({TOOLS}[^`]+)`|(?:Fix|Next|Log): ({TOOLS}.+?)(?=\. |\.?$| See )|^ {{6}}({TOOLS}.+)$", re.MULTILINE
)
PLACEHOLDER = re.compile(r"\b(?:HEAD,WORKER|USER@ADDRESS|HOSTS?|CONTAINER|IMAGE|REGISTRY)\b|@NAME\b|/NAME/|to=NAME\b")
LOOKS = re.compile(
    r"(?:ansible-playbook (?:\S+ )*?(?:\S*/)?|vllm-spark )(?:status|history|verify|precheck|collect)(?:\.yml)?(?: |$)"
)


def commands(text: str) -> list[str]:
    """Return the commands of a text, each once."""
    return list(dict.fromkeys(next(filter(None, groups)).strip() for groups in IN_TEXT.findall(text)))


def unfilled(text: str) -> Iterator[str]:
    """Yield the commands with a word in place of a name."""
    yield from (command for command in commands(text) if PLACEHOLDER.search(command))


def looking(text: str) -> list[str]:
    """Return the commands that change nothing."""
    return [command for command in commands(text) if LOOKS.match(command)]


def main(argv: Sequence[str]) -> int:
    text = Path(argv[1]).read_text(encoding="utf-8")
    found, faults = looking(text), [f"a placeholder: {command}" for command in unfilled(text)]
    faults += [f"without {word}: {command}" for command in found for word in argv[2:] if word not in command.split()]
    print("\n".join(found))
    print("\n".join(faults), file=sys.stderr)
    return int(bool(faults) or not found)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
