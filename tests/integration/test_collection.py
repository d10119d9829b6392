"""The collection that `make lint` builds, installed by ansible-galaxy into an environment with ansible-core alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from clean_environment import TOOLKIT, Environment
from vllm_spark.core import paths

# The Fix without an index: what pip would download is linked.
OFFLINE = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false"}


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
    assert "recipe qwen3.6-35b-a3b-nvfp4-mtp pins image" in output
    # Other verbs go on to the first question to the Spark.
    for words in (("vllm_spark.toolkit.plan",), ("vllm_spark.toolkit.deploy", "--check")):
        nowhere = (*verb[:2], *words, "-e", "ansible_host=127.0.0.1", "-e", "ansible_port=1")
        status, output = environment.ansible("playbook", *nowhere)
        assert status == 4, output
        assert "no SSH connection to 127.0.0.1 port 1" in " ".join(output.split())


def test_ansible_doc_needs_no_package(environment: Environment) -> None:
    status, output = environment.ansible("doc", "-t", "module", "vllm_spark.toolkit.vllm_files")
    assert status == 0, output
    assert "MODULE vllm_spark.toolkit.vllm_files" in output
