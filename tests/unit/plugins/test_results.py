"""The results of earlier tasks that actions read."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vllm_spark.core import paths
from vllm_spark_ansible import results
from vllm_spark_ansible.results import PrintedStep, Step

STEPS = {name: step for name, step in vars(results).items() if isinstance(step, Step)}
TASKS = "\n".join(file.read_text(encoding="utf-8") for file in sorted((paths.ROOT / "roles").glob("*/tasks/*.yml")))
# A result that a task registers, or a fact.
VARIABLE = re.compile(r"^ *(?:register: (\w+)|([a-z_]+): .*)$", re.MULTILINE)


@pytest.mark.parametrize("name", STEPS)
def test_a_role_registers_the_variable_of_each_step(name: str) -> None:
    assert STEPS[name].variable in {found for pair in VARIABLE.findall(TASKS) for found in pair}


def test_no_action_names_the_variable_of_a_step() -> None:
    variables = {step.variable for step in STEPS.values()}
    texts = {file.name: file.read_text(encoding="utf-8") for file in (paths.ROOT / "plugins" / "action").glob("*.py")}
    assert len(texts) > 20
    named = {(file, name) for file, text in texts.items() for name in variables if f'"{name}"' in text}
    assert named == set()


@pytest.mark.parametrize(
    ("variables", "known", "result"),
    [
        ({}, False, None),
        ({"made": None}, False, None),
        ({"made": {"failed": True, "msg": "no"}}, False, None),
        ({"made": {"value": None}}, True, None),
        ({"made": {"value": 1}}, True, 1),
    ],
)
def test_a_field(variables: dict[str, Any], known: bool, result: object) -> None:
    step = Step[int]("made", "value")
    assert (step.known(variables), step.of(variables)) == (known, result)


def test_a_whole_result_and_a_printed_one() -> None:
    assert Step[float]("began").of({"began": 1.5}) == 1.5
    assert PrintedStep("ran").of({"ran": {"stdout": '{"ok": true}'}}) == {"ok": True}
    assert PrintedStep("ran").of({"ran": {"skipped": True}}) == {}
