"""A stand-in for journalctl: it prints the lines of a file as entries of the journal, which it numbers by their cursor.

    journalctl --quiet --unit=U --output=json --output-fields=MESSAGE --since=DAY | --after-cursor=CURSOR

It knows no unit and no day. A cursor beyond the last line is unknown to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """\
#!{python}
import json, pathlib, sys
lines = pathlib.Path({file!r}).read_text().splitlines()
option, _, value = sys.argv[-1].partition("=")
first = int(value) if option == "--after-cursor" else 0
assert option in ("--after-cursor", "--since"), sys.argv
if first > len(lines):
    sys.exit("Failed to seek to cursor: Invalid argument")
for number, line in enumerate(lines[first:], first + 1):
    print(json.dumps({{"__CURSOR": str(number), "MESSAGE": line}}))
"""


def place(folder: Path) -> Path:
    """Make the program in a folder, and return the file of its lines."""
    file, program = folder / "journal", folder / "journalctl"
    file.touch()
    program.write_text(PROGRAM.format(python=sys.executable, file=str(file)), encoding="utf-8")
    program.chmod(0o755)
    return file
