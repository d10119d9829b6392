"""Scenarios name existing playbooks. Molecule skips a missing one with a warning among thousands of lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from vllm_spark.core import paths

SCENARIOS = sorted(paths.ROOT.glob("molecule/*/molecule.yml"))
# Actions that Molecule does without a playbook of the scenario.
OWN = {"create", "destroy"}


@pytest.mark.parametrize("file", SCENARIOS, ids=lambda file: file.parent.name)
def test_every_playbook_of_a_sequence_exists(file: Path) -> None:
    """Molecule also skips an action with its own playbook if the action's default playbook is missing."""
    sequence = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["scenario"]["test_sequence"]
    for step in sequence:
        action, _, playbook = step.partition(" ")
        usual = {"check": "converge", "idempotence": "converge"}.get(action, action)
        for name in {f"{usual}.yml", playbook or f"{usual}.yml"}:
            assert (file.parent / name).is_file() or action in OWN, f"{file.parent.name}: {step} needs {name}"
