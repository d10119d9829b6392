#!/usr/bin/python3
"""The steps of a derived image, run by its Dockerfile inside the base image.

    image_steps.py pip FILE             install pins (a line each); every other package keeps its version
    image_steps.py overlay FILE FOLDER  put the *.py of FOLDER in a .tar.gz over those of the package vllm
    image_steps.py patch FILE...        apply unified diffs, or see that they are there already

A step that cannot be done as described ends the build, and its last line says why. What was done is in
/etc/vllm-spark/derived.json of the image.
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
# What a unified diff of text cannot say, and this program does not do.
NOT_TEXT = re.compile(r"(GIT binary patch|Binary files |rename from |copy from )")


class StepError(Exception):
    """A step cannot be done; the message says why, with the values seen."""


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
    """Keep what a step has done, and say it."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    RECORD.write_text(json.dumps({**known, step: done}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"vllm-spark: {step} {json.dumps(done, sort_keys=True)}")


# --- packages


def canonical(name: str) -> str:
    """A package's one name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """canonical name -> version of every package; of two with one name the one that is imported."""
    importlib.invalidate_caches()
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        if package.metadata["Name"]:
            found.setdefault(canonical(package.metadata["Name"]), package.version)
    return found


def constraints(present: dict[str, str], pins: Sequence[str]) -> list[str]:
    """A line for each package that must keep its version: all that no pin names."""
    pinned = {canonical(re.split(r"[\[=]", pin)[0]) for pin in pins}
    return [f"{name}=={version}" for name, version in sorted(present.items()) if name not in pinned]


def install(file: str) -> dict[str, str]:
    """Install pins; returns what is new or has another version now. Raises StepError where pip cannot."""
    pins = Path(file).read_text(encoding="utf-8").split()
    before = installed()
    held = Path(file).with_suffix(".constraints")
    held.write_text("\n".join(constraints(before, pins)) + "\n", encoding="utf-8")
    words = ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--constraint", str(held), *pins]
    # A distribution's own Python asks not to be touched; this one belongs to the image.
    environment = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    done = subprocess.run([sys.executable, "-m", "pip", "install", *words], env=environment, check=False)
    if done.returncode:
        raise StepError(
            f"pip cannot add {' '.join(pins)} (above): either it does not get them, "
            "or they would change a package that the base image has at another version"
        )
    return {name: version for name, version in installed().items() if before.get(name) != version}


def root_of(package: str) -> Path | None:
    """The folder that a package lies in, found without importing it."""
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or []) if found else []
    return Path(places[0]).parent if places else None


def read(path: Path) -> str:
    """A text with its line ends as they are."""
    return path.read_bytes().decode()


def place(path: Path, content: str) -> None:
    """Write a source, and drop the bytecode of the old one: some images never compare the two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8", newline="")
    forget(path)


def forget(path: Path) -> None:
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


# --- overlay


def overlay(archive: str, folder: str) -> dict[str, object]:
    """Put the sources of a folder in an archive over the engine's. Its compiled parts stay."""
    root = root_of(ENGINE)
    if root is None:
        raise StepError(f"the base image has no package {ENGINE} to put the overlay over")
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
        raise StepError(f"the overlay's archive has no *.py in {folder}")
    return {"folder": folder, "files": count}


# --- patches


@dataclass(frozen=True)
class Hunk:
    """One change: the lines before and after it, from line `start` (1 is the first) of the old file."""

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
    """All hunks of one file. An empty `old` is a file that comes, an empty `new` one that goes."""

    old: str
    new: str
    hunks: tuple[Hunk, ...] = field(default_factory=tuple)

    @property
    def path(self) -> str:
        return self.new or self.old

    def reverse(self) -> Change:
        return Change(self.new, self.old, tuple(hunk.reverse() for hunk in self.hunks))


def patch(*files: str) -> dict[str, str]:
    """Apply patches in order; returns file -> applied or already there. Raises StepError at the first that is
    neither."""
    done = {}
    for file in files:
        changes = parse(read(Path(file)))
        name = Path(file).name
        if not changes:
            raise StepError(f"{name} is no unified diff")
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
    """The changes of a unified diff, as `diff -u` and git write it. Raises StepError for what is no text change."""
    changes: list[Change] = []
    old = ""
    lines = deque(text.split("\n"))
    while lines:
        line = lines.popleft()
        if NOT_TEXT.match(line):
            raise StepError(f"{line.strip()}: only changes of text are applied")
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
    """`--- a/vllm/x.py<TAB>date` -> `vllm/x.py`; nothing for /dev/null."""
    path = line[4:].partition("\t")[0].rstrip()
    return "" if path == NOTHING else path.partition("/")[2]


def _hunk(number: int, header: re.Match[str], lines: deque[str], inside: bool) -> Hunk:
    """Read one hunk. `inside`: it changes a file that is there before and after, and must then have context."""
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
        raise StepError(f"hunk {number} has no context, so nobody can tell whether it is there already")
    return Hunk(number, int(header[1]), tuple(old), tuple(new), leading, trailing)


def _cut_end(mark: str, old: list[str], new: list[str]) -> None:
    """The last line read has no line break at its end."""
    if mark in " -" and old:
        old[-1] = old[-1].rstrip("\n")
    if mark in " +" and new:
        new[-1] = new[-1].rstrip("\n")


def results(changes: Sequence[Change]) -> dict[Path, str | None]:
    """What every file would hold, None for one that goes. Raises StepError with the file and the hunk."""
    written: dict[Path, str | None] = {}
    for change in changes:
        target = target_of(change.path)
        current = written.get(target, read(target) if target.is_file() else None)
        if (current is None) is bool(change.old):
            raise StepError(f"{change.path} {'is there already' if current is not None else 'is not in the image'}")
        lines = applied(change, split(current or ""))
        if not change.new and lines:
            raise StepError(f"{change.path} would keep {len(lines)} lines that the patch does not know")
        written[target] = "".join(lines) if change.new else None
    return written


def target_of(path: str) -> Path:
    """Where a patched file lies: its first folder is a package of the image."""
    parts = PurePosixPath(path).parts
    if not parts[1:] or ".." in parts:
        raise StepError(f"{path or 'a file without a name'} is in no package of the image")
    root = root_of(parts[0])
    if root is None:
        raise StepError(f"{path}: the image has no package {parts[0]}; leave its part out of the patch")
    return root.joinpath(*parts)


def split(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def applied(change: Change, lines: list[str]) -> list[str]:
    """The file's lines after every hunk. A hunk may have moved; its lines may not have changed (no fuzz)."""
    result: list[str] = []
    done = moved = 0
    for hunk in change.hunks:
        wanted = max(hunk.start - (1 if hunk.old else 0), 0) + moved
        at = find(hunk, lines, done, wanted)
        if at is None:
            raise StepError(f"{change.path}, hunk {hunk.number} (line {hunk.start}): its lines are not there")
        result += [*lines[done:at], *hunk.new]
        done, moved = at + len(hunk.old), at - wanted + moved
    return [*result, *lines[done:]]


def find(hunk: Hunk, lines: list[str], since: int, wanted: int) -> int | None:
    """Where a hunk's old lines are, nearest to where it says. Without context before or after it stands at the file's
    own start or end, as for git."""
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
