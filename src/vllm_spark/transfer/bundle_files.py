"""The list of a bundle's files with their sha256, which the operator signs. Standard library only.

    files.sha256   `# vllm-spark bundle ID`, then a line per file as sha256sum writes it: SHA256, two spaces, path

`sha256sum --check files.sha256` reads it too. A link is listed with the content of the file that it leads to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.core.refusal import Refusal, RefusalKind, RefusedError, register
from vllm_spark.node.pull.files import sha256_of

FILE_CHANGED = register("bundle-file-changed", runbook="bundle-signature")
FILE_MISSING = register("bundle-file-missing", runbook="bundle-signature")
FILE_EXTRA = register("bundle-file-extra", runbook="bundle-signature")
FILE_LINK = register("bundle-file-link", runbook="bundle-signature")
LIST_BROKEN = register("bundle-list", runbook="bundle-signature")

CONTENTS = "bundle.json"
LIST = "files.sha256"
SIGNATURE = f"{LIST}.sig"
# The list cannot name itself. The contents are written after it, and it names them.
UNLISTED = {LIST, SIGNATURE}
HEADER = re.compile(r"# vllm-spark bundle ([0-9a-f]{32})")
LINE = re.compile(r"([0-9a-f]{64})  ([^\\\x00-\x1f\x7f]+)")
MAX_LIST_BYTES = 64 << 20
# Names of files in one message.
MAX_NAMED = 5

# Prints one line to the operator.
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FileList:
    """Path below the bundle -> sha256 of the content. `bundle_id` is also in the contents of the bundle."""

    bundle_id: str
    files: Mapping[str, str]

    def text(self) -> str:
        lines = (f"{sha256}  {path}\n" for path, sha256 in sorted(self.files.items()))
        return f"# vllm-spark bundle {self.bundle_id}\n{''.join(lines)}"

    def differences(self, folder: Path, log: Log) -> list[Refusal]:
        """Read every file of the bundle. Return a refusal for the files that differ, are missing or are not listed."""
        present, links = {}, []
        for path in paths_of(folder):
            try:
                present[path] = target_of(folder, path)
            except ValueError as error:
                links.append(str(error))
        missing = sorted(self.files.keys() - present.keys() - {link.partition(" leads to ")[0] for link in links})
        extra = sorted(present.keys() - self.files.keys())
        read = checksums({path: file for path, file in present.items() if path in self.files}, log)
        changed = [
            f"{path} (sha256 {sha256}, the list has {self.files[path]})"
            for path, sha256 in read.items()
            if sha256 != self.files[path]
        ]
        found = ((FILE_LINK, links), (FILE_CHANGED, changed), (FILE_MISSING, missing), (FILE_EXTRA, extra))
        return [_refusal(kind, folder, names) for kind, names in found if names]


def parse(folder: Path) -> FileList:
    """Return the list of a bundle. Raises RefusedError."""
    file = folder / LIST
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_LIST_BYTES + 1)
        if len(content) > MAX_LIST_BYTES:
            raise ValueError(f"it has more than {MAX_LIST_BYTES} bytes")
        header, *lines = content.decode().split("\n")
        if lines.pop() != "" or not (match := HEADER.fullmatch(header)):
            raise ValueError(f"{len(content)} bytes that begin with {header[:60]!r}, its header or its end is missing")
        files = dict(_entry(number, line) for number, line in enumerate(lines, 2))
        if len(files) < len(lines):
            raise ValueError("it names a path twice")
    except (OSError, ValueError, IndexError) as error:
        raise list_error(folder, f"{file}: {error}") from error
    return FileList(match[1], files)


def list_error(folder: Path, what: str) -> RefusedError:
    return LIST_BROKEN.error(
        what=what,
        expected="the complete list of the files of this bundle",
        fix=f"copy {LIST}, {SIGNATURE} and {CONTENTS} of the same bundle again; or where there is internet, "
        f"remove {folder / CONTENTS} and run the same command again, which keeps valid parts.",
    )


def _entry(number: int, line: str) -> tuple[str, str]:
    """Return (path, sha256) of a line. Raises ValueError."""
    match = LINE.fullmatch(line)
    if not match or {"", ".", ".."} & set(match[2].split("/")):
        raise ValueError(f"line {number} is {ascii(line)[:100]}")
    return match[2], match[1]


def paths_of(folder: Path) -> Iterator[str]:
    """Yield the path of every file, link and special file below a bundle. Raises OSError for an unreadable folder."""

    def fail(error: OSError) -> None:
        raise error

    for base, folders, names in os.walk(folder, onerror=fail):
        links = [name for name in folders if Path(base, name).is_symlink()]
        for name in sorted([*names, *links]):
            path = Path(base, name).relative_to(folder).as_posix()
            if path not in UNLISTED:
                yield path


def target_of(folder: Path, path: str) -> Path:
    """Return the file that a path leads to. Raises ValueError if it is not a file of the bundle."""
    file, top = (folder / path).resolve(), folder.resolve()
    if not file.is_relative_to(top) or not file.is_file():
        raise ValueError(f"{path} leads to {file}")
    if file.relative_to(top).as_posix() in UNLISTED:
        raise ValueError(f"{path} leads to {file}")
    return file


def checksums(files: Mapping[str, Path], log: Log) -> dict[str, str]:
    """Return path -> sha256. A file with several paths is read once. A file that cannot be read has no valid sha256."""
    read: dict[Path, str] = {}
    top = ""
    for path, file in files.items():
        if file in read:
            continue
        folders = path.split("/")[:-1]
        if folders and (group := "/".join(folders[: 2 if folders[0] == "hub" else 1])) != top:
            log(f"reading {group}")
            top = group
        try:
            read[file] = sha256_of(file)
        except OSError as error:
            read[file] = f"unknown: {error.strerror}"
    return {path: read[file] for path, file in files.items()}


def list_files(folder: Path, bundle_id: str, log: Log) -> FileList:
    """Return the list of the files of a bundle that is being written. Raises RefusedError."""
    files, faults = {}, []
    for path in paths_of(folder):
        try:
            files[path] = target_of(folder, path)
            if not LINE.fullmatch(f"{'0' * 64}  {path}"):
                raise ValueError(f"{path!a} leads to a name that a list cannot have")
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise RefusedError([_refusal(FILE_LINK, folder, faults)])
    return FileList(bundle_id, checksums(files, log))


EXPECTED = {
    FILE_CHANGED.id: ("differ from the list", "the files that the signer wrote"),
    FILE_MISSING.id: ("are missing", "every file of the list"),
    FILE_EXTRA.id: ("are not in the list", "only the files of the list"),
    FILE_LINK.id: ("are not files of the bundle", "files, and links to files inside the bundle"),
}


def _refusal(kind: RefusalKind, folder: Path, names: list[str]) -> Refusal:
    fault, expected = EXPECTED[kind.id]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    remove = kind in {FILE_EXTRA, FILE_LINK}
    return kind(
        what=f"{len(names)} path(s) of the bundle {folder} {fault}: {ascii_names(names[:MAX_NAMED])}{more}",
        expected=expected,
        fix=f"remove them from {folder} if you know their origin, otherwise do not use this bundle."
        if remove
        else f"copy the bundle again (rsync -a --checksum); or where there is internet, remove {folder / CONTENTS} and "
        "run the same command again, which keeps valid parts.",
    )


def ascii_names(names: list[str]) -> str:
    """Return names for a message, without characters that a terminal obeys."""
    return ", ".join(name if name.isprintable() else ascii(name) for name in names)
