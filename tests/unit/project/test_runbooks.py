"""Every trap of the field reports and every fault of a pair has a runbook with its symptom."""

from __future__ import annotations

import re
from typing import Any

import yaml

from project_files import DATA
from vllm_spark.core import paths

DOCUMENT = yaml.load((DATA / "traps.yml").read_text(), yaml.CSafeLoader)
TRAPS, FAULTS = DOCUMENT["traps"], DOCUMENT["faults"]
CASES = yaml.load((paths.ROOT / "molecule" / "faults" / "vars" / "cases.yml").read_text(), yaml.CSafeLoader)
REPORTS = {"000", "001", "002", "003", "004"}


def symptom(runbook: str) -> str:
    """Return the text of the section Symptom of a runbook, in one line."""
    text = (paths.RUNBOOKS / f"{runbook}.md").read_text()
    [section] = re.findall(r"^## Symptom\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return " ".join(section.split())


def missing_symptoms(entries: list[dict[str, Any]], name: str) -> list[str]:
    """Return the entries whose runbook does not have their symptom."""
    return [entry[name] for entry in entries if entry["symptom"] not in symptom(entry["runbook"])]


def test_every_trap_is_in_the_symptom_of_its_runbook() -> None:
    assert missing_symptoms(TRAPS, "trap") == []


def test_every_fault_of_a_pair_is_in_the_symptom_of_its_runbook() -> None:
    assert missing_symptoms(FAULTS, "fault") == []


def test_every_report_and_every_provoked_fault_is_listed() -> None:
    assert {report for trap in TRAPS for report in trap["reports"]} == REPORTS
    provoked = {case["name"] for case in CASES["fault_cases"] + CASES["fault_cases_mp"]}
    assert provoked <= {fault["fault"] for fault in FAULTS}


def test_a_curl_of_a_page_says_why_it_got_nothing() -> None:
    """`curl -s` alone prints nothing if nothing listens."""
    pages = [*(paths.ROOT / "docs").rglob("*.md"), paths.ROOT / "README.md"]
    assert [page.name for page in pages if "curl -s " in page.read_text()] == []
