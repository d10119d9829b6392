"""The collection that `make lint` builds, installed by ansible-galaxy into an environment with ansible-core alone."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vllm_spark.core import paths

# The Fix without an index: what pip would download is linked.
OFFLINE = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false"}
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

    def run(self, *words: str, **variables: str) -> tuple[int, str]:
        """Return exit status and output of a command in the environment."""
        clean = {name: text for name, text in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON", "PIP_"))}
        folder = self.collections.parent
        clean |= {"ANSIBLE_COLLECTIONS_PATH": str(self.collections), "ANSIBLE_HOME": str(folder / "home")}
        clean |= {"ANSIBLE_NOCOLOR": "1", **variables}
        done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=300)
        return done.returncode, done.stdout + done.stderr

    def ansible(self, program: str, *words: str, **variables: str) -> tuple[int, str]:
        """Run a program of Ansible, such as playbook."""
        return self.run(str(self.python), "-m", "ansible", program, *words, **variables)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment with ansible-core alone and the installed collection."""
    made = Environment(tmp_path)
    made.link("ansible-core")
    status, output = made.ansible("galaxy", "collection", "build", "--output-path", str(tmp_path), str(paths.ROOT))
    assert status == 0, output
    (built,) = tmp_path.glob("*.tar.gz")
    words = ("install", "--offline", "-p", str(made.collections), str(built))
    status, output = made.ansible("galaxy", "collection", *words)
    assert status == 0, output
    return made


def test_a_verb_names_the_missing_package_and_runs_after_the_fix(environment: Environment, tmp_path: Path) -> None:
    installed = environment.collections / "ansible_collections" / "vllm_spark" / "toolkit"
    verb = ("-i", str(paths.ROOT / "inventories" / "minimal"), "vllm_spark.toolkit.lock", "--check")
    # Without ansible.cfg, the import of an action fails first. With it, that of the inventory plugin does.
    for variables in ({}, {"ANSIBLE_CONFIG": str(installed / "ansible.cfg")}):
        status, output = environment.ansible("playbook", *verb, **variables)
        assert status == 1, output
        assert f"[ERROR]: {environment.python} has no module vllm_spark — expected: the Python package" in output
        assert "Traceback" not in output
    fix = re.search(r"Fix: (.+?)\. See docs/", output)
    assert fix
    environment.link(TOOLKIT, "setuptools", "pip")
    status, output = environment.run(*shlex.split(fix[1]), **OFFLINE)
    assert status == 0, output
    status, output = environment.ansible("playbook", *verb)
    assert status == 0, output
    assert "recipe gemma-4-26b-a4b-nvfp4-mtp pins image" in output


def test_ansible_doc_needs_no_package(environment: Environment) -> None:
    status, output = environment.ansible("doc", "-t", "module", "vllm_spark.toolkit.vllm_plan")
    assert status == 0, output
    assert "MODULE vllm_spark.toolkit.vllm_plan" in output
