"""A virtual environment with ansible-core and what a test adds, without an index."""

from __future__ import annotations

import os
import subprocess
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

TOOLKIT = "vllm-spark"


def distributions(name: str) -> Iterator[str]:
    """Yield a distribution and what it requires on this machine."""
    found, left = set[str](), [name]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            yield name
            requirements = map(Requirement, distribution(name).requires or ())
            left += [one.name for one in requirements if not one.marker or one.marker.evaluate({"extra": ""})]


class Environment:
    """A virtual environment with links to distributions of this one."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "venv" / "bin" / "python"
        self.collections = folder / "collections"
        venv.create(folder / "venv", symlinks=True)
        (self._packages,) = (folder / "venv").glob("lib/*/site-packages")

    def link(self, *names: str) -> None:
        """Add distributions, but not the toolkit itself."""
        for name in {name for root in names for name in distributions(root)} - {TOOLKIT}:
            one = distribution(name)
            for entry in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
                if not (self._packages / entry).exists():
                    (self._packages / entry).symlink_to(str(one.locate_file(entry)))

    def run(self, *words: str, folder: Path | None = None, **variables: str) -> tuple[int, str]:
        """Return exit status and output of a command in the environment, typed in a folder."""
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON", "PIP_"))}
        base = self.collections.parent
        clean |= {"ANSIBLE_COLLECTIONS_PATH": str(self.collections), "ANSIBLE_HOME": str(base / "home")}
        clean |= {"ANSIBLE_NOCOLOR": "1", **variables}
        done = subprocess.run(
            words, cwd=folder or base, env=clean, capture_output=True, text=True, check=False, timeout=300
        )
        return done.returncode, done.stdout + done.stderr

    def ansible(self, program: str, *words: str, **variables: str) -> tuple[int, str]:
        """Run a program of Ansible, such as playbook."""
        return self.run(str(self.python), "-m", "ansible", program, *words, **variables)
