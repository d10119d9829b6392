"""The artefacts of a release: wheel, sdist and collection of a commit, SHA256SUMS and its signature (`make dist`).

They are built twice, in two folders, and must have the same bytes. What differs between two builds is set here: the
order of files, times (that of the commit), owners and modes. The compression is that of this Python's zlib.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from vllm_spark.core import paths

NAMESPACE = "vllm-spark-release"
SUMS = "SHA256SUMS"
BACKEND = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
EXECUTABLE = 0o100
# The collection's list of its files with their checksums, and the file with the checksum of the list.
FILES, MANIFEST = "FILES.json", "MANIFEST.json"


class DistError(Exception):
    """A release that cannot be built. The text says what was seen, what was expected, and the fix."""


def run(*words: str | Path, folder: Path = paths.ROOT, **variables: str) -> bytes:
    """Return the output of a program. Raises DistError with its last line if it fails."""
    done = subprocess.run(  # noqa: S603  constant programs
        [str(word) for word in words],
        cwd=folder,
        capture_output=True,
        check=False,
        env={**os.environ, **variables},
        umask=0o022,  # a wheel has the modes of the files
    )
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise DistError(
            f"{words[0]} ended with status {done.returncode}: {said[-1] if said else 'no output'} — expected: 0. "
            "Fix: correct what it names, then make dist"
        )
    return done.stdout


def build(ref: str, into: Path) -> list[Path]:
    """Write wheel, sdist and collection of a commit into an empty folder. Returns them by name. Raises DistError."""
    epoch = int(run("git", "log", "-1", "--format=%ct", ref))
    with tempfile.TemporaryDirectory() as folder:
        tree, source = Path(folder, "tree.tar"), Path(folder, "source")
        run("git", "archive", f"--prefix={source.name}/", f"--output={tree}", ref)
        # The Python of Debian 12 has no filter for what tarfile unpacks.
        run("tar", "--extract", f"--file={tree}", f"--directory={folder}")
        run("ansible-galaxy", "collection", "build", "--output-path", into, folder=source)
        for kind in ("sdist", "wheel"):
            words = (sys.executable, "-c", BACKEND, f"build_{kind}", into)
            run(*words, folder=source, SOURCE_DATE_EPOCH=str(epoch))
    for archive in into.glob("*.tar.gz"):
        repack(archive, epoch)
    return sorted(into.iterdir())


def repack(archive: Path, epoch: int) -> None:
    """Write a .tar.gz again, with its files in the order of their names, and the time of the commit."""
    with tarfile.open(archive) as old:
        members = [(one, (old.extractfile(one) or io.BytesIO()).read() if one.isfile() else b"") for one in old]
    content = {one.name: data for one, data in members}
    if FILES in content:
        listed = json.loads(content[FILES])
        listed["files"].sort(key=lambda entry: entry["name"])
        content[FILES] = json.dumps(listed, indent=1).encode()
        manifest = json.loads(content[MANIFEST])
        manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(content[FILES]).hexdigest()
        content[MANIFEST] = json.dumps(manifest, indent=1).encode()
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as new,
    ):
        for one in sorted((one for one, _ in members), key=lambda one: one.name):
            plain = tarfile.TarInfo(one.name)
            plain.type, plain.linkname, plain.mtime, plain.size = one.type, one.linkname, epoch, len(content[one.name])
            plain.mode = 0o755 if one.isdir() or one.mode & EXECUTABLE else 0o644
            new.addfile(plain, io.BytesIO(content[one.name]))


def sums(files: Sequence[Path]) -> str:
    """Return the lines of sha256sum."""
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def release(ref: str, into: Path, key: Path | None = None) -> str:
    """Write the artefacts of a commit, their checksums and, with a key, the signature. Returns the checksums.

    Raises DistError if two builds differ, or a program fails.
    """
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        files, again = build(ref, Path(first)), build(ref, Path(second))
        if sums(files) != sums(again):
            raise DistError(f"two builds differ:\n{sums(files)}{sums(again)}— expected: the same checksums")
        into.mkdir(parents=True, exist_ok=True)
        files = [Path(shutil.copy(file, into)) for file in files]
    listed = into / SUMS
    listed.write_text(sums(files), encoding="ascii")
    listed.with_suffix(".sig").unlink(missing_ok=True)  # of other checksums
    if key:
        run("ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", NAMESPACE, listed)
    return listed.read_text(encoding="ascii")


def main(argv: Sequence[str] | None = None) -> int:
    """Build a release. Returns 1 if it cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m lab.dist", description=__doc__)
    parser.add_argument("--ref", default="HEAD", help="the commit; default: HEAD")
    parser.add_argument("--key", type=Path, help="private ssh key that signs, or the public one of a key of the agent")
    parser.add_argument("--into", type=Path, default=paths.ROOT / "dist", help="default: dist")
    args = parser.parse_args(argv)
    try:
        print(release(args.ref, args.into, args.key and args.key.absolute()), end="")
    except DistError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Two builds gave the same bytes. They are in {args.into}, with {SUMS}.")
    if not args.key:
        print(f"{SUMS} is not signed: nobody can tell who built this. Fix: make dist KEY=~/.ssh/id_ed25519")
    return 0


if __name__ == "__main__":
    sys.exit(main())
