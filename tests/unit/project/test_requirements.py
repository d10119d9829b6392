"""requirements.lock: pip compares every package with a hash, and the file belongs to pyproject.toml."""

from __future__ import annotations

import re
import tomllib

import pytest

import look_alike
from vllm_spark.core import paths

LOCK = (paths.ROOT / "requirements.lock").read_text(encoding="utf-8")
# A requirement is its own line, with its hashes on the lines after it.
REQUIREMENT = r"^([a-z0-9][a-z0-9._-]*)==(\S+)([^\n]*\\\n(?:    --hash=\S+(?: \\)?\n)*)?"
REQUIREMENTS = re.findall(REQUIREMENT, LOCK, re.MULTILINE)


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_every_package_has_a_sha256() -> None:
    assert len(REQUIREMENTS) > 50
    assert [name for name, _, hashes in REQUIREMENTS if "--hash=sha256:" not in hashes] == []


@pytest.mark.parametrize("python", ["3.11.8", "3.12.3", "3.13.5", "3.14.0"])
def test_each_python_has_one_version_of_every_direct_requirement(python: str) -> None:
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    direct = names([*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]])
    locked = re.findall(r"(?m)^(\S+)==", look_alike.requirements(python))
    assert len(locked) == len({*locked})
    # The build of the project takes its packages from the lock file too.
    assert {*direct, *names(project["build-system"]["requires"])} <= {*locked}


def test_the_setup_installs_nothing_without_a_hash() -> None:
    makefile = (paths.ROOT / "Makefile").read_text(encoding="utf-8")
    setup = makefile[makefile.index("$(READY): ") : makefile.index(".PHONY: setup")]
    installs = [line for line in setup.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)
