"""The definition of the execution environment, judged by ansible-builder. No image is built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from cached_folder import AS_LISTED, cached_folder, pip
from vllm_spark.core import paths

BUILDER = "ansible-builder==3.2.0"


@pytest.fixture(scope="module")
def builder() -> Path:
    """The folder of ansible-builder. What it imports beside itself is in this environment."""

    def fill(folder: Path) -> None:
        listed = folder / "requirements.txt"
        listed.write_text(BUILDER, encoding="utf-8")
        pip("install", *AS_LISTED, "--target", str(folder), "-r", str(listed))

    return cached_folder(paths.ROOT / ".cache" / "ansible-builder", "builder", BUILDER, fill)


def run(builder: Path, *words: str, folder: Path) -> str:
    """Return what ansible-builder prints."""
    program = "import sys; from ansible_builder.cli import run; sys.argv[0] = 'ansible-builder'; run()"
    environment = {**os.environ, "PYTHONPATH": str(builder)}
    done = subprocess.run(
        (sys.executable, "-c", program, *words),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.online
def test_the_builder_accepts_the_definition_and_takes_the_wheel(builder: Path, tmp_path: Path) -> None:
    shutil.copy(paths.ROOT / "execution-environment.yml", tmp_path)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "vllm_spark-1.2.3-py3-none-any.whl").write_text("wheel")
    run(builder, "create", "--context", "context", "--output-filename", "Containerfile", folder=tmp_path)
    assert (tmp_path / "context/_build/dist/vllm_spark-1.2.3-py3-none-any.whl").read_text() == "wheel"
    steps = (tmp_path / "context" / "Containerfile").read_text()
    assert "RUN $PYCMD -m pip install --no-cache-dir /tmp/*.whl" in steps


@pytest.mark.online
def test_the_builder_finds_what_the_collection_needs(builder: Path, tmp_path: Path) -> None:
    collection = tmp_path / "ansible_collections" / "vllm_spark" / "toolkit"
    shutil.copytree(paths.ROOT / "meta", collection / "meta")
    shutil.copy(paths.ROOT / "galaxy.yml", collection)
    found = yaml.load(run(builder, "introspect", str(tmp_path), folder=tmp_path), yaml.CSafeLoader)
    assert any(line.startswith("jinja2>=") for line in found["python"])
    assert any(line.startswith("openssh-clients [platform:rpm]") for line in found["system"])


def test_ansible_core_is_that_of_the_project() -> None:
    definition = yaml.load((paths.ROOT / "execution-environment.yml").read_text(), yaml.CSafeLoader)
    needed = map(Requirement, (paths.ROOT / "meta" / "ee-requirements.txt").read_text().splitlines())
    own = Requirement(definition["dependencies"]["ansible_core"]["package_pip"])
    assert own in [*needed]
