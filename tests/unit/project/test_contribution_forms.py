"""SECURITY.md and the forms for issues and changes: sound forms, commands that run, the files that `collect` makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import typed_commands
from vllm_spark.core import paths
from vllm_spark.doctor import support_bundle
from vllm_spark.doctor.command import MANIFEST

FORMS = sorted(file for file in (paths.ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if file.stem != "config")
PAGES = [*FORMS, paths.ROOT / ".github/PULL_REQUEST_TEMPLATE.md", paths.ROOT / "SECURITY.md"]
# The elements of a form, and whether an element takes an answer.
TYPES = {"markdown": False, "input": True, "textarea": True, "dropdown": True, "checkboxes": True}


def elements(form: Path) -> list[dict[str, Any]]:
    return list(yaml.load(form.read_text(), yaml.CSafeLoader)["body"])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_is_one_that_a_forge_reads(form: Path) -> None:
    document = yaml.load(form.read_text(), yaml.CSafeLoader)
    assert set(document) <= {"name", "description", "title", "labels", "body"}
    assert document["name"]
    assert document["description"]
    body = elements(form)
    assert {element["type"] for element in body} <= set(TYPES)
    answers = [element for element in body if TYPES[element["type"]]]
    assert len({element["id"] for element in answers}) == len(answers)
    assert all(element["attributes"]["label"] for element in answers)
    assert all(element["attributes"]["value"] for element in body if not TYPES[element["type"]])


def test_a_fault_needs_the_version_the_output_and_the_findings() -> None:
    (form,) = [form for form in FORMS if form.stem == "fault"]
    required = {element["id"] for element in elements(form) if element.get("validations", {}).get("required") is True}
    assert {"version", "typed", "findings"} <= required
    text = form.read_text()
    assert f"`{support_bundle.FINDINGS}`" in text
    assert "reports/collect-HOST-TIME.tar.gz" in text
    assert f"`{MANIFEST}`" in (form.parent / "wish.yml").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_form_asks_for_a_collect_and_its_commands_run(page: Path) -> None:
    text = page.read_text()
    commands = [
        code for code in re.findall(r"`([^`\n]+)`", text) if re.match(r"(?:ansible-playbook|vllm-spark) ", code)
    ]
    assert "ansible-playbook collect.yml -K" in commands
    assert {command: fault for command in commands if (fault := typed_commands.wrong(command))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_address_is_invented(page: Path) -> None:
    assert re.findall(r"https?://\S+|\S+@\S+", page.read_text()) == []
