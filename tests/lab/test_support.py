"""The table of what the toolkit was tried with: each row is shown by a file or a check, and agrees with the code."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from lab.pages import support
from vllm_spark.core import paths
from vllm_spark.deploy.check_registry import REGISTRY
from vllm_spark.deploy.checks.hardware import OLDEST_DRIVER

ROWS = support.rows()
PROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SEVERITIES = {"refused": "refusal", "warned": "warning"}


def versions(what: str, *states: str) -> set[str]:
    return {row["version"] for row in ROWS if row["what"] == what and row["state"] in (states or support.STATES)}


def test_each_row_is_shown_by_a_file_or_a_check_that_has_a_case() -> None:
    cases = [file.read_text() for file in (paths.ROOT / "tests" / "cases").glob("*.json")]
    findings = (paths.ROOT / "tests" / "data" / "host_findings.yml").read_text()
    for row in ROWS:
        by, state = row.get("by", ""), row["state"]
        assert set(row) <= {"what", "version", "state", "by", "note"}, row
        assert state in support.STATES, row
        if state in SEVERITIES:
            assert REGISTRY[by].severity == SEVERITIES[state], row
            assert any(f'"{by}"' in text for text in cases) or by in findings, row
        elif state == "not tried":
            assert not by, row
        elif state == "once":
            assert row["note"], row
        else:
            assert (paths.ROOT / by).is_file(), row
    assert len({(row["what"], row["version"]) for row in ROWS}) == len(ROWS)


def test_python_and_ansible_core_are_those_of_the_project_and_the_locks() -> None:
    pythons = versions("Python")
    assert f">={min(pythons, key=lambda text: int(text.partition('.')[2]))}" == PROJECT["requires-python"]
    (limit,) = (one.specifier for one in map(Requirement, PROJECT["dependencies"]) if one.name == "ansible-core")
    minors = {f"2.{minor}" for minor in range(40) if f"2.{minor}" in SpecifierSet(str(limit))}
    assert versions("ansible-core") == minors
    locked = re.findall(r"^ansible-core==(\d+\.\d+)", (paths.ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert versions("ansible-core", "regularly") == {*locked}


def test_the_driver_is_that_of_the_check() -> None:
    assert versions("driver", "refused") == {f"below {OLDEST_DRIVER}"}
    assert str(OLDEST_DRIVER) in versions("driver", "not tried")


def test_vllm_has_the_versions_whose_parsers_are_asked() -> None:
    engines = {file.stem for file in (paths.RECIPES / "engines").glob("*.json")}
    assert versions("vLLM") == engines
