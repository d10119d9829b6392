#!/usr/bin/python3
"""Steps of a derived image. Its Dockerfile runs them inside the base image.

    image_steps.py pip FILE             install the pins, one on a line; every other package keeps its version
    image_steps.py overlay FILE FOLDER  replace sources of the package vllm by the *.py of FOLDER in a .tar.gz
    image_steps.py patch FILE...        apply unified diffs; one that is applied already is reported

A step that fails ends the build, and the last line has the reason. /etc/vllm-spark/derived.json of the image records
the results.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

RECORD = Path("/etc/vllm-spark/derived.json")
REFUSED = "vllm-spark refuses:"
ENGINE = "vllm"

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
NOTHING = "/dev/null"
# Changes that a unified diff of text cannot describe. They are refused.
NOT_TEXT = re.compile(r"(GIT binary patch|Binary files |rename from |copy from )")


class StepError(Exception):
    """A step that cannot be done. The message has the reason and the values seen."""


def main(words: Sequence[str]) -> int:
    steps: dict[str, Callable[..., object]] = {"pip": install, "overlay": overlay, "patch": patch}
    if not words[1:] or words[0] not in steps:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        record(words[0], steps[words[0]](*words[1:]))
    except StepError as refused:
        print(f"{REFUSED} {refused}", file=sys.stderr)
        return 1
    return 0


def record(step: str, done: object) -> None:
    """Record the result of a step, and print it."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    RECORD.write_text(json.dumps({**known, step: done}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"vllm-spark: {step} {json.dumps(done, sort_keys=True)}")


# --- packages


def canonical(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return name -> version of every package. Of two with one name, the one that is imported counts."""
    importlib.invalidate_caches()
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        if package.metadata["Name"]:
            found.setdefault(canonical(package.metadata["Name"]), package.version)
    return found


def constraints(present: dict[str, str], pins: Sequence[str]) -> list[str]:
    """Return a constraint for each package that no pin names, so that it keeps its version."""
    pinned = {canonical(re.split(r"[\[=]", pin)[0]) for pin in pins}
    return [f"{name}=={version}" for name, version in sorted(present.items()) if name not in pinned]


def install(file: str) -> dict[str, str]:
    """Install pins. Returns the packages that are new or have another version. Raises StepError if pip fails."""
    pins = Path(file).read_text(encoding="utf-8").split()
    before = installed()
    held = Path(file).with_suffix(".constraints")
    held.write_text("\n".join(constraints(before, pins)) + "\n", encoding="utf-8")
    words = ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--constraint", str(held), *pins]
    # Debian marks its Python as managed by apt. This one belongs to the image.
    environment = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run([sys.executable, "-m", "pip", "install", *words], env=environment, check=False)
    if done.returncode:
        raise StepError(
            f"pip cannot add {' '.join(pins)} (above): it cannot download them, "
            "or they need another version of a package of the base image"
        )
    return {name: version for name, version in installed().items() if before.get(name) != version}


def root_of(package: str) -> Path | None:
    """Return the folder that contains a package, without importing it."""
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or []) if found else []
    return Path(places[0]).parent if places else None


def read(path: Path) -> str:
    """Return a text with its line ends unchanged."""
    return path.read_bytes().decode()


def place(path: Path, content: str) -> None:
    """Write a source and remove its old bytecode, because some images never compare the two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", newline="")
    forget(path)


def forget(path: Path) -> None:
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


# --- overlay


def overlay(archive: str, folder: str) -> dict[str, object]:
    """Replace the engine's sources by those of a folder in an archive. Compiled parts stay."""
    root = root_of(ENGINE)
    if root is None:
        raise StepError(f"the base image has no package {ENGINE} for the overlay")
    count = 0
    with tarfile.open(archive, "r:gz") as opened:
        for member in opened:
            inside = PurePosixPath(member.name)
            wanted = inside.suffix == ".py" and inside.is_relative_to(folder) and ".." not in inside.parts
            if member.isfile() and wanted:
                source = opened.extractfile(member)
                assert source is not None  # noqa: S101  it is a file; this tells the type checker
                place(root / ENGINE / inside.relative_to(folder), source.read().decode())
                count += 1
    if not count:
        raise StepError(f"the archive of the overlay has no *.py in {folder}")
    return {"folder": folder, "files": count}


# --- patches


@dataclass(frozen=True)
class Hunk:
    """One change: its old and new lines, from line `start` of the old file (the first line is 1)."""

    number: int
    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    leading: int
    trailing: int

    def reverse(self) -> Hunk:
        return Hunk(self.number, self.start, self.new, self.old, self.leading, self.trailing)


@dataclass(frozen=True)
class Change:
    """All hunks of one file. `old` is empty for a new file, `new` for a removed one."""

    old: str
    new: str
    hunks: tuple[Hunk, ...] = field(default_factory=tuple)

    @property
    def path(self) -> str:
        return self.new or self.old

    def reverse(self) -> Change:
        return Change(self.new, self.old, tuple(hunk.reverse() for hunk in self.hunks))


def patch(*files: str) -> dict[str, str]:
    """Apply patches in order. Returns file -> applied or already there. Raises StepError for the first one that
    cannot be applied."""
    done = {}
    for file in files:
        changes = parse(read(Path(file)))
        name = Path(file).name
        if not changes:
            raise StepError(f"{name} is not a unified diff")
        try:
            written, state = results(changes), "applied"
        except StepError as forward:
            try:
                results([change.reverse() for change in changes])
                written, state = {}, "already there"
            except StepError:
                raise StepError(f"patch {name} does not apply: {forward}") from forward
        for path, content in written.items():
            if content is None:
                path.unlink()
                forget(path)
            else:
                place(path, content)
        done[name] = state
    return done


def parse(text: str) -> list[Change]:
    """Return the changes of a unified diff of `diff -u` or git. Raises StepError for a change that is not text."""
    changes: list[Change] = []
    old = ""
    lines = deque(text.split("\n"))
    while lines:
        line = lines.popleft()
        if NOT_TEXT.match(line):
            raise StepError(f"{line.strip()}: only changes of text can be applied")
        if line.startswith("--- "):
            old = _path(line)
        elif line.startswith("+++ "):
            changes.append(Change(old, _path(line)))
        elif changes and (header := HUNK.match(line)):
            last = changes.pop()
            hunk = _hunk(len(last.hunks) + 1, header, lines, bool(last.old and last.new))
            changes.append(Change(last.old, last.new, (*last.hunks, hunk)))
    return changes


def _path(line: str) -> str:
    """Return the path of a header: `--- a/vllm/x.py<TAB>date` -> `vllm/x.py`, and an empty text for /dev/null."""
    path = line[4:].partition("\t")[0].rstrip()
    return "" if path == NOTHING else path.partition("/")[2]


def _hunk(number: int, header: re.Match[str], lines: deque[str], inside: bool) -> Hunk:
    """Read one hunk. With `inside` it changes a file that exists before and after, so it must have context."""
    wanted_old, wanted_new = (int(header[group] or 1) if header[group] != "0" else 0 for group in (2, 4))
    old: list[str] = []
    new: list[str] = []
    marks = ""
    # A mark of a missing line break may follow the last line.
    while len(old) < wanted_old or len(new) < wanted_new or (lines and lines[0].startswith("\\")):
        line = lines.popleft() if lines else "@"
        mark = line[:1] or " "
        if mark not in " +-\\":
            raise StepError(f"hunk {number} ends before its {wanted_old} old and {wanted_new} new lines")
        if mark == "\\":
            _cut_end(marks[-1:], old, new)
            continue
        marks += mark
        if mark in " -":
            old.append(f"{line[1:]}\n")
        if mark in " +":
            new.append(f"{line[1:]}\n")
    leading, trailing = len(marks) - len(marks.lstrip(" ")), len(marks) - len(marks.rstrip(" "))
    if inside and not leading and not trailing:
        raise StepError(f"hunk {number} has no context, so whether it is applied already is unknown")
    return Hunk(number, int(header[1]), tuple(old), tuple(new), leading, trailing)


def _cut_end(mark: str, old: list[str], new: list[str]) -> None:
    """Remove the line break of the last line that was read."""
    if mark in " -" and old:
        old[-1] = old[-1].rstrip("\n")
    if mark in " +" and new:
        new[-1] = new[-1].rstrip("\n")


def results(changes: Sequence[Change]) -> dict[Path, str | None]:
    """Return the new text of every file, None for a removed one. Raises StepError with the file and the hunk."""
    written: dict[Path, str | None] = {}
    for change in changes:
        target = target_of(change.path)
        current = written.get(target, read(target) if target.is_file() else None)
        if (current is None) is bool(change.old):
            raise StepError(f"{change.path} {'exists already' if current is not None else 'is not in the image'}")
        lines = applied(change, split(current or ""))
        if not change.new and lines:
            raise StepError(f"{change.path} has {len(lines)} more lines than the patch removes")
        written[target] = "".join(lines) if change.new else None
    return written


def target_of(path: str) -> Path:
    """Return the path of a patched file, whose first folder is a package of the image."""
    parts = PurePosixPath(path).parts
    if not parts[1:] or ".." in parts:
        raise StepError(f"{path or 'a file without a name'} is not in a package of the image")
    root = root_of(parts[0])
    if root is None:
        raise StepError(f"{path}: the image has no package {parts[0]}; remove its part from the patch")
    return root.joinpath(*parts)


def split(text: str) -> list[str]:
    """Return the lines with their ends. Only a line feed ends a line."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def applied(change: Change, lines: list[str]) -> list[str]:
    """Return the lines of a file after every hunk. A hunk may have moved, but its lines must be the same (no fuzz)."""
    result: list[str] = []
    done = moved = 0
    for hunk in change.hunks:
        wanted = max(hunk.start - (1 if hunk.old else 0), 0) + moved
        at = find(hunk, lines, done, wanted)
        if at is None:
            raise StepError(f"{change.path}, hunk {hunk.number} (line {hunk.start}): its lines are not in the file")
        result += [*lines[done:at], *hunk.new]
        done, moved = at + len(hunk.old), at - wanted + moved
    return [*result, *lines[done:]]


def find(hunk: Hunk, lines: list[str], since: int, wanted: int) -> int | None:
    """Return the place of a hunk's old lines that is nearest to its line number, or None. Without context before or
    after them, the place is the start or the end of the file, as for git."""
    last = len(lines) - len(hunk.old)
    candidates: Sequence[int] = range(since, last + 1)
    if not hunk.trailing:
        candidates = [last]
    elif not hunk.leading and hunk.start <= 1:
        candidates = [0]
    for at in sorted(candidates, key=lambda place: abs(place - wanted)):
        if since <= at and tuple(lines[at : at + len(hunk.old)]) == hunk.old:
            return at
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
