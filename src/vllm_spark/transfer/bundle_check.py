"""Seal a bundle with a signed list of its files, and verify it before anything of it is used. Standard library only.

    python3 -m vllm_spark.transfer.bundle_check DIR [--signers FILE] [--unsigned]

The command is for `make setup BUNDLE=DIR`: it verifies the wheels before they are installed.

    files.sha256   `# vllm-spark bundle ID`, then a line per file as sha256sum writes it: SHA256, two spaces, path

`sha256sum --check files.sha256` reads the list too. A link is listed with the content of the file that it leads to.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_spark.core.own_process import Log
from vllm_spark.core.refusal import Refusal, RefusalKind, RefusedError, register
from vllm_spark.node.pull.files import sha256_of
from vllm_spark.node.state_file import replace_file
from vllm_spark.transfer import bundle_signature
from vllm_spark.transfer.bundle_signature import SigningKey

UNSIGNED = register("bundle-unsigned", runbook="bundle-signature")
OTHER_LIST = register("bundle-list-other", runbook="bundle-signature")
LIST_BROKEN = register("bundle-list", runbook="bundle-signature")
FILE_CHANGED = register("bundle-file-changed", runbook="bundle-signature")
FILE_MISSING = register("bundle-file-missing", runbook="bundle-signature")
FILE_EXTRA = register("bundle-file-extra", runbook="bundle-signature")
FILE_LINK = register("bundle-file-link", runbook="bundle-signature")

CONTENTS = "bundle.json"
LIST = "files.sha256"
SIGNATURE = f"{LIST}.sig"
# The list cannot name itself.
UNLISTED = {LIST, SIGNATURE}
HEADER = re.compile(r"# vllm-spark bundle ([0-9a-f]{32})")
LINE = re.compile(r"([0-9a-f]{64})  ([^\\\x00-\x1f\x7f]+)")
MAX_LIST_BYTES = 64 << 20
MAX_SIGNATURE_BYTES = 64 << 10
# Names of files in one message.
MAX_NAMED = 5
DEFAULT_SIGNERS = Path("inventories/site/allowed_signers")
WRITE_AGAIN = "run the same command again, which keeps valid parts."


@dataclass(frozen=True, slots=True)
class FileList:
    """Path below the bundle -> sha256 of the content. `bundle_id` is also in the contents of the bundle."""

    bundle_id: str
    files: Mapping[str, str]

    def text(self) -> str:
        lines = (f"{sha256}  {path}\n" for path, sha256 in sorted(self.files.items()))
        return f"# vllm-spark bundle {self.bundle_id}\n{''.join(lines)}"


@dataclass(frozen=True, slots=True)
class Trust:
    """The operator's choices: the file of accepted signers, the key that signs (empty: the operator's own), and whether
    a bundle without a signature is written and accepted."""

    signers: Path
    key: str = ""
    unsigned: bool = False

    def signing_key(self, log: Log) -> SigningKey | None:
        """Return the key for a new bundle, after a signature of nothing with it. Raises RefusedError.

        The trial comes before the downloads, which may take hours.
        """
        if self.unsigned:
            log("the bundle will not be signed (bundle_unsigned): its reader must accept that with the same option")
            return None
        key = bundle_signature.find_key(self.key, self.signers, log)
        for warning in bundle_signature.warnings(key, self.signers):
            log(warning)
        return key


def seal(folder: Path, contents: Mapping[str, Any], key: SigningKey | None, log: Log) -> None:
    """Write the list of all files, its signature, and the contents last. Raises RefusedError."""
    bundle_id = uuid.uuid4().hex
    text = json.dumps({**contents, "id": bundle_id}, indent=1, sort_keys=True) + "\n"
    (folder / CONTENTS).unlink(missing_ok=True)
    present, faults = files_of(folder)
    faults |= {path: f"{path!a} cannot be in a list" for path in present if not LINE.fullmatch(f"{'0' * 64}  {path}")}
    if faults:
        raise RefusedError([_refusal(FILE_LINK, folder, list(faults.values()))])
    log("computing the sha256 of every file")
    files = {**checksums(present, log), CONTENTS: hashlib.sha256(text.encode()).hexdigest()}
    listed = FileList(bundle_id, files).text()
    signature = key.sign(listed.encode()) if key else ""
    replace_file(folder / LIST, listed)
    (folder / SIGNATURE).unlink(missing_ok=True)
    if signature:
        replace_file(folder / SIGNATURE, signature)
    replace_file(folder / CONTENTS, text)


def verify(folder: Path, trust: Trust, log: Log) -> FileList:
    """Return the verified list of a bundle: its signer is accepted and every file is as listed. Raises RefusedError."""
    if not (folder / LIST).exists() and not (folder / SIGNATURE).exists():
        raise _list_error(folder, f"{folder / LIST} does not exist")
    log(f"{folder} is signed by {signer}" if (signer := _signer(folder, trust)) else f"{folder} is not signed")
    listed = parse(folder)
    if (bundle_id := _bundle_id(folder)) != listed.bundle_id:
        raise OTHER_LIST.error(
            what=f"{folder / LIST} is the list of bundle {listed.bundle_id}, {CONTENTS} is of bundle {bundle_id}",
            expected="the list of this bundle",
            fix=bundle_signature.COPY_AGAIN,
        )
    if refusals := _differences(folder, listed.files, log):
        raise RefusedError(refusals)
    return listed


def _signer(folder: Path, trust: Trust) -> str:
    """Return the signer of the list; empty for an accepted bundle without a signature. Raises RefusedError."""
    file, listed = folder / SIGNATURE, folder / LIST
    if file.exists():
        with file.open("rb") as opened:
            armor = opened.read(MAX_SIGNATURE_BYTES).decode(errors="replace")
        content = listed.read_bytes() if listed.exists() else b""
        return bundle_signature.verify(listed, content, armor, trust.signers)
    if trust.unsigned:
        return ""
    raise UNSIGNED.error(
        what=f"the bundle {folder} has no signature: {file} does not exist",
        expected=f"a signature of one of {trust.signers}",
        fix=f"copy {SIGNATURE} too, or remove {CONTENTS} where the bundle was written and run the same command there, "
        "which signs it. To load it unsigned: -e bundle_unsigned=true.",
    )


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
        raise _list_error(folder, f"{file}: {error}") from error
    return FileList(match[1], files)


def _entry(number: int, line: str) -> tuple[str, str]:
    """Return (path, sha256) of a line. Raises ValueError."""
    match = LINE.fullmatch(line)
    if not match or {"", ".", ".."} & set(match[2].split("/")):
        raise ValueError(f"line {number} is {ascii(line)[:100]}")
    return match[2], match[1]


def _bundle_id(folder: Path) -> str:
    try:
        return str(json.loads((folder / CONTENTS).read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise _list_error(folder, f"{folder / CONTENTS}: {type(error).__name__}: {error}") from error


def _list_error(folder: Path, what: str) -> RefusedError:
    return LIST_BROKEN.error(
        what=what,
        expected="the complete list of the files of this bundle",
        fix=f"copy {LIST}, {SIGNATURE} and {CONTENTS} of the same bundle again; or where there is internet, "
        f"remove {folder / CONTENTS} and {WRITE_AGAIN}",
    )


def files_of(folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the files of a bundle, path -> the file that it leads to, and the faults of all other names by path.

    Raises OSError for an unreadable folder.
    """

    def fail(error: OSError) -> None:
        raise error

    present, faults, top = dict[str, Path](), dict[str, str](), folder.resolve()
    unlisted = {top / name for name in UNLISTED}
    for base, folders, names in os.walk(top, onerror=fail):
        links = [name for name in folders if Path(base, name).is_symlink()]
        for name in sorted([*names, *links]):
            path, file = Path(base, name).relative_to(top).as_posix(), Path(base, name).resolve()
            if path in UNLISTED:
                continue
            if file.is_file() and file.is_relative_to(top) and file not in unlisted:
                present[path] = file
            else:
                faults[path] = f"{path} leads to {file}"
    return present, faults


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


def _differences(folder: Path, listed: Mapping[str, str], log: Log) -> list[Refusal]:
    """Read every file of the bundle. Return a refusal for the files that differ, are missing or are not listed."""
    present, faults = files_of(folder)
    read = checksums({path: file for path, file in present.items() if path in listed}, log)
    changed = [
        f"{path} (sha256 {sha256}, the list has {listed[path]})"
        for path, sha256 in read.items()
        if sha256 != listed[path]
    ]
    found = {
        FILE_LINK: list(faults.values()),
        FILE_CHANGED: changed,
        FILE_MISSING: sorted(listed.keys() - present.keys() - faults.keys()),
        FILE_EXTRA: sorted(present.keys() - listed.keys()),
    }
    return [_refusal(kind, folder, names) for kind, names in found.items() if names]


EXPECTED = {
    FILE_CHANGED: ("differ from the list", "the files that the signer wrote"),
    FILE_MISSING: ("are missing", "every file of the list"),
    FILE_EXTRA: ("are not in the list", "only the files of the list"),
    FILE_LINK: ("are not files of the bundle", "files, and links to files inside the bundle"),
}


def _refusal(kind: RefusalKind, folder: Path, names: Sequence[str]) -> Refusal:
    fault, expected = EXPECTED[kind]
    # A name must not contain characters that a terminal obeys.
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in names[:MAX_NAMED])
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    fix = f"copy the bundle again (`rsync -a --checksum`); or where there is internet, remove {folder / CONTENTS} and "
    fix += WRITE_AGAIN
    if kind in {FILE_EXTRA, FILE_LINK}:
        fix = f"remove them from {folder} if you know their origin, otherwise do not use this bundle."
    return kind(what=f"{len(names)} path(s) of the bundle {folder} {fault}: {shown}{more}", expected=expected, fix=fix)


def main(words: list[str] | None = None) -> int:
    """Verify a bundle. Returns the exit status: 0, or 1 with the refusals on stderr."""
    parser = argparse.ArgumentParser(description="Verify the signature and every file of a bundle.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--signers", type=Path, default=DEFAULT_SIGNERS, help=f"default: {DEFAULT_SIGNERS}")
    parser.add_argument("--unsigned", action="store_true", help="accept a bundle without a signature")
    options = parser.parse_args(words)
    try:
        listed = verify(options.folder.resolve(), Trust(options.signers, unsigned=options.unsigned), print)
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(listed.files)} files are as listed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
