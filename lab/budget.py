"""The budget of each room, budget.toml: `make lint` judges lines, `make unit` and `make slow` their CPU seconds.

python -m lab.budget              judge the lines of every room
python -m lab.budget unit COMMAND run COMMAND and judge its CPU seconds
"""

from __future__ import annotations

import ast
import io
import os
import resource
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vllm_spark.core import paths

FILE = "budget.toml"
FIX = "Fix: delete as much elsewhere in it, or raise the number in a commit whose message says what an owner gets"
# Other processes make CPU time dearer: twice and more on a busy machine.
IDLE_LOAD = 1.0
MARKS = {".lua": "--"}
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """Return how many lines of Python hold a token, without docstrings. A string of three lines counts as three."""
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            held.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(held)


def other_lines(text: str, suffix: str) -> int:
    """Return how many lines of YAML, a template, Lua or shell are neither blank nor a comment."""
    lines = [line.strip() for line in text.splitlines()]
    return sum(bool(line) and not line.startswith(MARKS.get(suffix, "#")) for line in lines)


def counted(root: Path, names: Iterable[str], budget: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the lines of each room and each pattern. A Python file counts for the room with the longest path above it.

    `names`: files below `root`; a link counts where it leads."""
    lines = Counter(dict.fromkeys([*budget["rooms"], *budget["others"]], 0))
    for name in names:
        file = root / name
        if file.is_symlink() or not file.is_file():
            continue
        if file.suffix == ".py":
            rooms = [room for room in budget["rooms"] if name == room or name.startswith(f"{room}/")]
            if rooms:
                lines[max(rooms, key=len)] += code_lines(file.read_text(encoding="utf-8"))
            continue
        for pattern in budget["others"]:
            if fnmatch(name, pattern):
                lines[pattern] += other_lines(file.read_text(encoding="utf-8"), file.suffix)
    return lines


def over(lines: Mapping[str, int], budget: Mapping[str, Any]) -> Sequence[str]:
    """Return a sentence per room that has more lines than its number."""
    allowed = {**budget["rooms"], **budget["others"]}
    return [
        f"{room} has {lines[room]} lines of code — expected: at most {allowed[room]} ({FILE}). {FIX}"
        for room in allowed
        if lines[room] > allowed[room]
    ]


def measured(suite: str, command: Sequence[str], budget: Mapping[str, Any]) -> int:
    """Run a suite and print its CPU seconds. Return its status, or 1 if it is green and above its number, unslowed."""
    load = os.getloadavg()[0]
    status = subprocess.run(command, check=False).returncode  # noqa: S603 -- make's own command
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, allowed = usage.ru_utime + usage.ru_stime, budget["cpu_seconds"][suite]
    busy = f" The load was {load:.1f} at the start, so they are not judged." if load > IDLE_LOAD else ""
    print(f"make {suite}: {seconds:.0f} CPU seconds — expected: at most {allowed} ({FILE}).{busy}", file=sys.stderr)
    return status or int(seconds > allowed and not busy)


def main(argv: Sequence[str]) -> int:
    """Judge the lines, or a suite and its command. Return 1 above a number."""
    budget = tomllib.loads((paths.ROOT / FILE).read_text(encoding="utf-8"))
    if argv:
        return measured(argv[0], argv[1:], budget)
    listing = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"],  # noqa: S607 -- the git of the clone
        cwd=paths.ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    faults = over(counted(paths.ROOT, listing.stdout.split("\0")[:-1], budget), budget)
    print(*faults, sep="\n", end="\n" if faults else "", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
