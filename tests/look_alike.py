"""Run pytest in the image of the sandbox's Sparks, by their Python: `python tests/look_alike.py [ARGUMENT]...`.

The container has the clone read-only, the loopback device alone, and no git. Its packages are those that
requirements-dev.lock has for its Python. This machine's pip puts them under .cache, because it knows the way to its
index.
LOOK_ALIKE=IMAGE runs another image, which needs /usr/bin/python3, openssl and OpenSSH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import yaml
from packaging.markers import Marker

from cached_folder import AS_LISTED, cached_folder, pip
from vllm_spark.core import paths

DEFAULTS = paths.ROOT / "sandbox" / "roles" / "sandbox_spark" / "defaults" / "main.yml"
IMAGE = os.environ.get("LOOK_ALIKE") or yaml.safe_load(DEFAULTS.read_text(encoding="utf-8"))["sandbox_spark_image"]
LOCK = (paths.ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
PYTHON = "/usr/bin/python3"
# A requirement with its marker, and its hashes on the lines after it.
REQUIREMENT = re.compile(r"(?m)^(?P<pin>\S+==\S+)(?: ; (?P<marker>.+?))? \\\n(?P<hashes>(?: +--hash=\S+(?: \\)?\n)+)")


def container(*words: str, program: str, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs a program in the image."""
    return ["docker", "run", "--rm", "--init", "--network=none", *options, f"--entrypoint={program}", IMAGE, *words]


def requirements(python: str, lock: str = LOCK) -> str:
    """Return the requirements that a lock file has for a Python, without their markers. pip itself reads a marker for
    the Python that runs it, also with --python-version."""
    target = {"python_version": python.rpartition(".")[0], "python_full_version": python}
    return "".join(
        f"{found['pin']} \\\n{found['hashes']}"
        for found in REQUIREMENT.finditer(lock)
        if not found["marker"] or Marker(found["marker"]).evaluate(target)
    )


def environment(python: str) -> Path:
    """Return a virtual environment of the image's Python with the toolkit and what the lock file has for it."""
    short, listed = python.rpartition(".")[0], requirements(python)

    def fill(folder: Path) -> None:
        site = folder / "lib" / f"python{short}" / "site-packages"
        (folder / "requirements.txt").write_text(listed, encoding="utf-8")
        for_python = ("--implementation=cp", f"--python-version={short}", "--ignore-requires-python", "--no-compile")
        hashed = ("--require-hashes", f"--requirement={folder / 'requirements.txt'}")
        pip("install", *AS_LISTED, *for_python, f"--target={site}", *hashed)
        # pip and the toolkit itself are of this environment. Neither has compiled modules.
        for name in ("pip", "vllm-spark"):
            for file in distribution(name).files or ():
                # A program of the toolkit or pip is outside of the packages: bin/NAME.
                if file.parts[0] != ".." and file.suffix != ".pyc":
                    (site / file).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file.locate(), site / file)
        (site / "bin").rename(folder / "bin")
        shutil.copy(Path(sys.executable).with_name("vllm-spark"), folder / "bin")
        for file in (folder / "bin").iterdir():
            content = file.read_bytes()
            if re.match(rb"#!.*python", content):
                file.write_bytes(b"#!/usr/bin/env python3\n" + content.partition(b"\n")[2])
        (folder / "bin" / "python3").symlink_to(PYTHON)
        (folder / "pyvenv.cfg").write_text(f"home = {Path(PYTHON).parent}\n", encoding="utf-8")

    return cached_folder(paths.ROOT / ".cache" / "look-alike", "python", f"{python} {listed}", fill)


def main(words: list[str]) -> int:
    """Run pytest in the image and return its exit status."""
    version = container("-c", "import platform; print(platform.python_version())", program=PYTHON)
    asked = subprocess.run(version, stdout=subprocess.PIPE, text=True, check=False)
    if asked.returncode:
        sys.exit(f"there is no Python in the image {IMAGE} — expected: the sandbox's image. Fix: make sandbox-up")
    folder = environment(asked.stdout.strip())
    options = (
        f"--volume={paths.ROOT}:{paths.ROOT}:ro",
        f"--workdir={paths.ROOT}",
        f"--env=PATH={folder}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "--env=PYTHONPYCACHEPREFIX=/tmp/bytecode",
    )
    program = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "not online", *words)
    return subprocess.run(container(*program, program=f"{folder}/bin/python3", options=options), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
