#!/usr/bin/python3
"""Steps of a derived image. Its Dockerfile runs them inside the base image.

    image_steps.py pip PINS WHEELS VERSION  install pins and the wheels that they need, of this version of Python; every
                                            other package of the image keeps its version
    image_steps.py overlay FILE FOLDER      replace sources of the package vllm by the *.py of FOLDER in a .tar.gz
    image_steps.py patch FILE...            apply unified diffs; one that is applied already is reported

A step that fails ends the build, and the last line has the reason. /etc/vllm-spark/derived.json of the image records
the results.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

RECORD = Path("/etc/vllm-spark/derived.json")
REFUSED = "vllm-spark refuses:"
ENGINE = "vllm"
# What pip prints for a file that does not have the checksum of its line.
MISMATCH = "DO NOT MATCH THE HASHES"
# transfer/messages.py recognizes a refusal that begins so.
OTHER_WHEEL = "another wheel"

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


def name_of(pin: str) -> str:
    """Return the normalized name of the package of NAME==VERSION, of a line of a requirements file too."""
    return canonical(pin.partition("==")[0])


def constraints(present: dict[str, str], pins: Sequence[str]) -> list[str]:
    """Return a constraint for each package that no pin names, so that it keeps its version."""
    pinned = {name_of(pin) for pin in pins}
    return [f"{name}=={version}" for name, version in sorted(present.items()) if name not in pinned]


def install(pins_file: str, wheels_file: str, python: str) -> dict[str, str]:
    """Install pins and what they need of the packages that the base image lacks, only files with the checksums of
    `wheels_file`. Returns the packages that are new or have another version. Raises StepError."""
    own = ".".join(map(str, sys.version_info[:2]))
    if own != python:
        raise StepError(f"the wheels are for Python {python}, and the base image has {own} (image.derive.python)")
    pins = Path(pins_file).read_text(encoding="utf-8").split()
    before = installed()
    lines = Path(wheels_file).read_text(encoding="utf-8").splitlines()
    names = {name_of(pin) for pin in pins}
    wanted, held = Path(wheels_file).with_suffix(".wanted"), Path(wheels_file).with_suffix(".constraints")
    wanted.write_text(
        "".join(f"{line}\n" for line in lines if name_of(line) in names or name_of(line) not in before),
        encoding="utf-8",
    )
    held.write_text("\n".join(constraints(before, pins)) + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        # Every file is here, and has its checksum, before the first one is installed.
        said = pip("download", "--no-deps", "--only-binary=:all:", "--dest", folder, "--requirement", str(wanted))
        if MISMATCH in said:
            raise StepError(f"{OTHER_WHEEL} of {' '.join(pins)} (above): the index has a file with another checksum")
        if said:
            raise StepError(f"pip cannot download {' '.join(pins)}, or what they need (above)")
        words = ("--no-index", "--find-links", folder, "--constraint", str(held), "--requirement", str(wanted))
        if pip("install", *words):
            raise StepError(
                f"pip cannot add {' '.join(pins)} (above): they need another version of a package of the base image, "
                "or one that is not among their wheels"
            )
    return {name: version for name, version in installed().items() if before.get(name) != version}


def pip(verb: str, *words: str) -> str:
    """Run pip, which takes only files with a checksum. Returns what it says of its failure; empty if it succeeds."""
    # Debian marks its Python as managed by apt. This one belongs to the image.
    environment = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    always = ("--disable-pip-version-check", "--no-input", "--no-cache-dir", "--require-hashes")
    argv = [sys.executable, "-m", "pip", verb, *always, *words]
    done = subprocess.run(argv, env=environment, check=False, text=True, stderr=subprocess.PIPE)
    print(done.stderr, file=sys.stderr, end="", flush=True)
    return done.stderr or f"pip ended with status {done.returncode}" if done.returncode else ""


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


# A reversed patch: its old lines are the new ones.
REVERSED = {" ": " ", "-": "+", "+": "-"}


@dataclass(frozen=True)
class Hunk:
    """One change: lines that begin with " ", "-" or "+", from line `start` of the old file (the first line is 1)."""

    number: int
    start: int
    lines: list[str]

    def side(self, mark: str) -> list[str]:
        """Return the old lines ("-") or the new ones ("+")."""
        return [line[1:] for line in self.lines if line[0] in {" ", mark}]

    def has_context(self, at: int) -> bool:
        """Return True if the first line (0) or the last line (-1) stays as it is."""
        return bool(self.lines) and self.lines[at][0] == " "

    def reverse(self) -> Hunk:
        return Hunk(self.number, self.start, [REVERSED[line[0]] + line[1:] for line in self.lines])


@dataclass(frozen=True)
class Change:
    """All hunks of one file. `old` is empty for a new file, `new` for a removed one."""

    old: str
    new: str
    hunks: list[Hunk] = field(default_factory=list)

    def reverse(self) -> Change:
        return Change(self.new, self.old, [hunk.reverse() for hunk in self.hunks])


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
            changes[-1].hunks.append(_hunk(changes[-1], header, lines))
    return changes


def _path(line: str) -> str:
    """Return the path of a header: `--- a/vllm/x.py<TAB>date` -> `vllm/x.py`, and an empty text for /dev/null."""
    path = line[4:].partition("\t")[0].rstrip()
    return "" if path == NOTHING else path.partition("/")[2]


def _hunk(change: Change, header: re.Match[str], lines: deque[str]) -> Hunk:
    """Read one hunk. One of a file that exists before and after must have context."""
    old, new = (1 if header[group] is None else int(header[group]) for group in (2, 4))
    hunk = Hunk(len(change.hunks) + 1, int(header[1]), [])
    # A mark of a missing line break may follow the last line.
    left_old, left_new = old, new
    while left_old > 0 or left_new > 0 or (lines and lines[0].startswith("\\")):
        line = (lines.popleft() if lines else "@") or " "
        if line[0] not in " +-\\":
            raise StepError(f"hunk {hunk.number} ends before its {old} old and {new} new lines")
        if line[0] == "\\":
            hunk.lines[-1:] = [last.rstrip("\n") for last in hunk.lines[-1:]]
            continue
        hunk.lines.append(f"{line}\n")
        left_old, left_new = left_old - (line[0] != "+"), left_new - (line[0] != "-")
    if change.old and change.new and not hunk.has_context(0) and not hunk.has_context(-1):
        raise StepError(f"hunk {hunk.number} has no context, so whether it is applied already is unknown")
    return hunk


def results(changes: Sequence[Change]) -> dict[Path, str | None]:
    """Return the new text of every file, None for a removed one. Raises StepError with the file and the hunk."""
    written: dict[Path, str | None] = {}
    for change in changes:
        path = change.new or change.old
        target = target_of(path)
        current = written.get(target, read(target) if target.is_file() else None)
        if (current is None) is bool(change.old):
            raise StepError(f"{path} {'exists already' if current is not None else 'is not in the image'}")
        lines = applied(change.hunks, list(io.StringIO(current or "")), path)
        if not change.new and lines:
            raise StepError(f"{path} has {len(lines)} more lines than the patch removes")
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


def applied(hunks: Sequence[Hunk], lines: list[str], path: str) -> list[str]:
    """Return the lines of a file after every hunk. A hunk may have moved, but its lines must be the same (no fuzz)."""
    result: list[str] = []
    done = moved = 0
    for hunk in hunks:
        old = hunk.side("-")
        expected = max(hunk.start - (1 if old else 0), 0) + moved
        places = [at for at in places_of(hunk, done, len(lines) - len(old)) if lines[at : at + len(old)] == old]
        if not places:
            raise StepError(f"{path}, hunk {hunk.number} (line {hunk.start}): its lines are not in the file")
        at = min(places, key=lambda place: abs(place - expected))
        result += [*lines[done:at], *hunk.side("+")]
        done, moved = at + len(old), at - expected + moved
    return [*result, *lines[done:]]


def places_of(hunk: Hunk, first: int, last: int) -> Iterable[int]:
    """Return where a hunk may be. Without context at its end it is at the end of the file, and without context at its
    start it is at the start, as for git."""
    if not hunk.has_context(-1):
        return [last] if first <= last else []
    if not hunk.has_context(0) and hunk.start <= 1:
        return [0] if first == 0 else []
    return range(first, last + 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
