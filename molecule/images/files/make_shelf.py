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


def wheel(folder: Path, name: str, version: str, requires: str) -> Path:
    """Write an empty package that pip can install. Returns its path."""
    made = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(made, "w") as packed:
        packed.writestr(f"{about}/METADATA", metadata + (f"Requires-Dist: {requires}\n" if requires else ""))
        packed.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{about}/RECORD", "")
    return made


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
    for package in (*wheels, *made):
        project = folder / "simple" / package.name.partition("-")[0].lower().replace("_", "-")
        project.mkdir(parents=True, exist_ok=True)
        shutil.copy(package, project)
        (project / "index.html").write_text(f'<a href="{package.name}">{package.name}</a>\n')
    print(hashlib.sha256(overlay.read_bytes()).hexdigest())


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
