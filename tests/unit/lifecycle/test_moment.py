"""What the scenario `day` calls a contradiction, harm and a fault (molecule/shared/files/moment.py)."""

from __future__ import annotations

import pytest

import moment
from vllm_spark.lifecycle import interruption


def answer(kind: str, again: str = "") -> dict[str, str]:
    return {"kind": kind, "again": again, "text": ""}


@pytest.mark.parametrize(
    ("before", "word", "after", "found"),
    [
        ("good", "serving, busy", "good", 0),
        ("good", "loading", "good", 1),
        ("good", "gave up: 5 starts", "good", 1),
        ("model_loading", "loading", "model_loading", 0),
        ("model_loading", "failed: hangs", "model_loading", 0),
        ("model_loading", "serving", "model_loading", 1),
        ("model_loading", "gave up", "model_loading", 1),
        ("model_failed", "gave up: 5 starts", "model_failed", 0),
        ("model_failed", "loading", "model_failed", 1),
        ("model_not_active", "loading", "model_not_active", 1),
        ("model_not_active", "stopped: by switch", "model_not_active", 0),
        # It changed in between, or the edge says nothing of the state.
        ("model_loading", "serving", "good", 0),
        ("silent", "serving", "silent", 0),
        ("good", "", "good", 0),
    ],
)
def test_an_edge_that_says_the_same_before_and_after_decides(before: str, word: str, after: str, found: int) -> None:
    assert len(moment.contradictions("status", answer(before), word, answer(after))) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Fix: ansible-playbook stop.yml -l spark1", 1),
        ("Its owner changes that with: ansible-playbook switch.yml -e to=tiny", 1),
        ("Its owner does that with: vllm-spark switch -e to=tiny", 1),
        ("ansible-playbook switch.yml -e to=pair-ray", 0),
        ("ansible-playbook deploy.yml -l spark1,spark2", 0),
    ],
)
def test_a_command_that_ends_the_deployment_is_harm(text: str, found: int) -> None:
    assert len(moment.harm("the edge", text, "pair-ray")) == found


def test_a_loading_model_says_when_to_ask_again_and_no_answer_is_wrong() -> None:
    answers = [answer("good"), answer("model_loading", "5"), answer("silent")]
    assert moment.faults_of(answers) == []
    assert len(moment.faults_of([*answers, answer("model_loading"), answer("wrong")])) == 2


@pytest.mark.parametrize(
    ("told", "command"),
    [
        (interruption.of_start("pair", ["tiny"], ["tiny"], ""), "ansible-playbook switch.yml -e to=tiny"),
        (
            interruption.of_start("tiny", [], [], "`ansible-playbook rollback.yml -l spark1` x"),
            "ansible-playbook rollback.yml -l spark1",
        ),
    ],
)
def test_the_command_of_an_interrupted_verb_is_found(told: interruption.AfterCtrlC, command: str) -> None:
    line = interruption.line("deploy", "Wait", 1, {"spark1": 1}, check=False, told=[told.to_json()])
    match = moment.PRINTED.search(line)
    assert match is not None
    assert match[1] == command


def test_the_table_has_a_line_per_event_and_one_per_fault() -> None:
    rows = [{"name": "load", "edge": "model_loading 5", "faults": []}, {"name": "crash", "faults": ["one", "two"]}]
    lines = moment.table(rows)
    assert len(lines) == 1 + 2 + 2
    assert lines[0].startswith("event ")
    assert "model_loading 5" in lines[1]
    assert lines[3:] == ["crash: one", "crash: two"]
