"""Every message to an operator ends in a runbook that exists and has its sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vllm_spark.core import paths

SECTIONS = ["Symptom", "Check", "Cause", "Fix", "How to see it is fixed", "When to escalate"]
RUNBOOKS = sorted(paths.RUNBOOKS.glob("*.md"))
NAMED = re.compile(r"""runbook=["']([a-z-]+)["']""")


def named() -> set[str]:
    """Every runbook that the package's source names."""
    sources = (paths.ROOT / "src").rglob("*.py")
    return {name for file in sources for name in NAMED.findall(file.read_text())}


def test_every_named_runbook_exists() -> None:
    names = named()
    assert {"port-taken", "wrong-identity", "image-pull", "not-ready-in-time", "recipe-refused"} <= names
    assert names - {file.stem for file in RUNBOOKS} == set()


@pytest.mark.parametrize("file", RUNBOOKS, ids=lambda file: file.stem)
def test_a_runbook_has_its_sections(file: Path) -> None:
    assert re.findall(r"^## (.+)$", file.read_text(), re.MULTILINE) == SECTIONS
