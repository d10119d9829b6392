"""The locks: pip compares every package with a hash, and the files belong to pyproject.toml and to each other."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest

import look_alike
from vllm_spark.core import paths

USE = (paths.ROOT / "requirements.lock").read_text(encoding="utf-8")
PYTHONS = ["3.11.8", "3.12.3", "3.13.5", "3.14.0"]
# A requirement is its own line, with its hashes on the lines after it.
REQUIREMENT = r"^([a-z0-9][a-z0-9._-]*)==(\S+)([^\n]*\\\n(?:    --hash=\S+(?: \\)?\n)*)?"
# A module, filter or lookup of a collection that ansible-core does not have.
FOREIGN = re.compile(r"\b(?:community\.\w+|ansible\.(?!builtin\b|cfg\b)\w+)\.\w+")


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def locked(python: str, lock: str) -> list[str]:
    """Return the names of the packages that a lock has for a Python."""
    return re.findall(r"(?m)^(\S+)==", look_alike.requirements(python, lock))


def foreign(*folders: str) -> Iterator[str]:
    """Yield the names of other collections in the YAML and the templates of folders."""
    for folder in folders:
        for file in (paths.ROOT / folder).rglob("*"):
            if file.suffix in {".yml", ".j2"}:
                yield from FOREIGN.findall(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("lock", "least"), [(USE, 40), (look_alike.LOCK, 70)])
def test_every_package_has_a_sha256(lock: str, least: int) -> None:
    requirements = re.findall(REQUIREMENT, lock, re.MULTILINE)
    assert len(requirements) > least
    assert [name for name, _, hashes in requirements if "--hash=sha256:" not in hashes] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_each_python_has_one_version_of_every_direct_requirement(python: str) -> None:
    project = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # The build of the project takes its packages from the lock file too.
    direct = names([*project["project"]["dependencies"], *project["build-system"]["requires"]])
    extras = project["project"]["optional-dependencies"]
    dev = names([*extras["dev"], *extras["test"]]) - {project["project"]["name"]}
    for_use, for_work = locked(python, USE), locked(python, look_alike.LOCK)
    assert (len(for_use), len(for_work)) == (len({*for_use}), len({*for_work}))
    assert direct <= {*for_use}
    assert dev <= {*for_work}
    assert dev & {*for_use} == set()


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_for_work_has_the_versions_and_hashes_of_the_one_for_use(python: str) -> None:
    for_use = look_alike.requirements(python, USE).splitlines()
    assert {*for_use} <= {*look_alike.requirements(python).splitlines()}


def test_the_setup_installs_nothing_without_a_hash() -> None:
    makefile = (paths.ROOT / "Makefile").read_text(encoding="utf-8")
    installs = [line for line in makefile.splitlines() if "pip install" in line]
    assert len(installs) == 4
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)


def test_the_product_needs_no_collection() -> None:
    assert [*foreign("playbooks", "roles", "templates", "inventories/minimal", "inventories/sample")] == []
    # The expression finds what the sandbox uses.
    assert {name.rpartition(".")[0] for name in foreign("sandbox")} == {"community.crypto", "community.docker"}
