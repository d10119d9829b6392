#!/usr/bin/env python3
"""Generate the package index and the archive for derived images, in place of the internet.

    make_shelf.py FOLDER WHEEL...

FOLDER/simple is a package index for pip (PEP 503). FOLDER/overlay/tiny-overlay.tar.gz is an archive with the same bytes
on every machine; sandbox/recipes/tiny-gemma4-derived.yml contains its checksum. Prints that checksum.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

SOURCES = {
    "tiny-overlay-1/vllm/spark_overlay.py": (
        '"""A source that the engine does not have."""\n\nNAME = "tiny-overlay-1"\n'  # the patches use this name
    ),
    # Neither is copied: notes.txt is not a source file, and setup.py is outside the folder.
    "tiny-overlay-1/vllm/notes.txt": "not copied\n",
    "tiny-overlay-1/setup.py": "raise SystemExit(1)\n",
}

# Dummy packages. The first requires another version of a package in the engine's image; the index has that version.
WISHES = {("tiny_wish", "1"): "shellingham==99", ("shellingham", "99"): ""}


def wheel(folder: Path, name: str, version: str, requires: str = "", tag: str = "py3-none-any") -> Path:
    """Write an empty package that pip can install, with the same bytes on every machine. `requires` has a requirement
    per line. Returns its path."""
    made = folder / f"{name}-{version}-{tag}.whl"
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires.splitlines())
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        "WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(made, "w") as packed:
        for file, text in files.items():
            packed.writestr(zipfile.ZipInfo(f"{about}/{file}"), text)
    return made


def index(folder: Path, packages: Iterable[Path]) -> None:
    """Write a package index (PEP 503) of some wheels into a folder."""
    for package in packages:
        project = folder / package.name.partition("-")[0].lower().replace("_", "-")
        project.mkdir(parents=True, exist_ok=True)
        shutil.copy(package, project)
        page = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in sorted(project.glob("*.whl")))
        (project / "index.html").write_text(page)


def archive() -> bytes:
    """Return the archive without times, owners and compression, because these differ between machines."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in SOURCES.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    zipped = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=0, fileobj=zipped, mtime=0) as stream:
        stream.write(packed.getvalue())
    return zipped.getvalue()


def main(folder: Path, wheels: list[Path]) -> None:
    overlay = folder / "overlay" / "tiny-overlay.tar.gz"
    overlay.parent.mkdir(parents=True, exist_ok=True)
    overlay.write_bytes(archive())
    wished = folder / "wheels"
    wished.mkdir(exist_ok=True)
    made = [wheel(wished, name, version, requires) for (name, version), requires in WISHES.items()]
    index(folder / "simple", (*wheels, *made))
    print(hashlib.sha256(overlay.read_bytes()).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
