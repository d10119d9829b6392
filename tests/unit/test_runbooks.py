"""Every trap of the field reports and every fault of a pair has a page that a person would recognise it by."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from conftest import DATA

from vllm_spark.core import paths

DOCUMENT = yaml.safe_load((DATA / "traps.yml").read_text())
TRAPS, FAULTS = DOCUMENT["traps"], DOCUMENT["faults"]
CASES = yaml.safe_load((paths.ROOT / "molecule" / "faults" / "vars" / "cases.yml").read_text())
REPORTS = {"000", "001", "002", "003", "004"}


def symptom(runbook: str) -> str:
    """The section of a runbook by which it is found."""
    text = (paths.RUNBOOKS / f"{runbook}.md").read_text()
    [section] = re.findall(r"^## Symptom\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return " ".join(section.split())


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap["trap"])
def test_a_trap_is_found_by_its_symptom(trap: dict[str, Any]) -> None:
    assert set(trap["reports"]) <= REPORTS
    assert trap["symptom"] in symptom(trap["runbook"])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["fault"])
def test_a_fault_of_a_pair_is_found_by_its_symptom(fault: dict[str, Any]) -> None:
    assert fault["symptom"] in symptom(fault["runbook"])


def test_every_report_and_every_fault_that_is_provoked_is_there() -> None:
    assert {report for trap in TRAPS for report in trap["reports"]} == REPORTS
    provoked = {case["name"] for case in CASES["fault_cases"] + CASES["fault_cases_mp"]}
    assert provoked <= {fault["fault"] for fault in FAULTS}
