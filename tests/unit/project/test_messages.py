"""Every registered refusal has a runbook, and every runbook has its sections."""

from __future__ import annotations

import re

import pytest

from registered_refusals import registered
from vllm_spark.core import paths
from vllm_spark.core.refusal import register

SECTIONS = ["Symptom", "Check", "Cause", "Fix", "How to see it is fixed", "When to escalate"]
RUNBOOKS = sorted(paths.RUNBOOKS.glob("*.md"))


def test_every_registered_runbook_exists() -> None:
    runbooks = registered()
    assert {"port-taken", "no-gpu", "unknown-recipe", "pull-disk", "rollback-which"} <= set(runbooks)
    stems = {file.stem for file in RUNBOOKS}
    assert {id_: name for id_, name in runbooks.items() if name not in stems} == {}


def test_an_id_has_one_runbook() -> None:
    register("port-taken", runbook="port-taken")
    with pytest.raises(ValueError, match="port-taken"):
        register("port-taken", runbook="garbage")


def test_runbooks_have_their_sections() -> None:
    sections = {file.stem: re.findall(r"^## (.+)$", file.read_text(), re.MULTILINE) for file in RUNBOOKS}
    assert {name: titles for name, titles in sections.items() if titles != SECTIONS} == {}
