"""The lines of failed tasks, and the line after Ctrl-C."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.core import paths, run_output
from vllm_spark.core.run_output import Cause, FailedTask, Reported
from vllm_spark.lifecycle import interruption

OWN = "port 8000 is taken — expected: a free port. Fix: stop it. See docs/runbooks/port-taken.md"
TASK = "roles/x/tasks/main.yml:7"
CONTEXT = "Origin: inventories/site/hosts.yml:8:21\n\n6 vars:\n8   key: {{ x\n         ^ column 21\n"


def failed(causes: tuple[Cause, ...] = (), **result: Any) -> FailedTask:
    return FailedTask("Read the facts", TASK, result, causes)


def test_an_own_message_stands_alone() -> None:
    assert run_output.failure(failed(msg=f"Task failed: Action failed: {OWN}\n{OWN}", rc=1, stderr="no")) == [OWN, OWN]


def test_another_failure_has_its_streams_and_its_task() -> None:
    lines = run_output.failure(
        failed(msg="Task failed: Module failed: non-zero return code", rc=3, stderr="a\ncause", stdout="")
    )
    assert lines[0] == "non-zero return code"
    assert lines[1:4] == ["  exit status 3", "  a", "  cause"]
    assert lines[4] == f"  in the task 'Read the facts', {TASK}; -v shows more"


def test_a_long_stream_is_cut_at_its_beginning() -> None:
    lines = run_output.failure(failed(msg="no", stdout="\n".join(f"line {number}" for number in range(50))))
    assert "  line 49" in lines
    assert "  line 20" not in lines


def test_an_error_of_the_inventory_has_its_file_and_line() -> None:
    causes = (
        Cause("Task failed.", TASK),
        Cause("Error while resolving", ""),
        Cause("unexpected '}'", "hosts.yml:8:21"),
    )
    assert run_output.failure(failed(causes, msg="Task failed: a long text"))[0] == "hosts.yml:8:21: unexpected '}'"


def test_the_place_of_the_task_itself_is_no_place_of_an_error() -> None:
    causes = (Cause("Task failed.", f"{TASK}:3"), Cause("no such file", ""))
    assert run_output.failure(failed(causes, msg="no such file"))[0] == "no such file"


@pytest.mark.parametrize(("context", "place"), [(CONTEXT, "inventories/site/hosts.yml:8:21"), (None, ""), ("text", "")])
def test_place(context: str | None, place: str) -> None:
    assert run_output.place(context) == place


@pytest.mark.parametrize("result", [{}, {"censored": "the output has been hidden"}])
def test_a_failure_without_a_message_is_reported(result: dict[str, str]) -> None:
    assert run_output.failure(failed(**result))[0] in {"the task failed without a message", *result.values()}


def test_two_hosts_with_one_reason() -> None:
    reported = Reported()
    assert reported.lines("spark1", [OWN]) == [f"spark1  {OWN}"]
    assert reported.lines("spark2", [OWN]) == ["spark2  fails for the same reason as spark1"]
    assert reported.lines("spark2", ["another"]) == ["spark2  another"]
    assert reported.lines("spark1", ["spark1: no SSH connection"]) == ["spark1  no SSH connection"]


def test_the_message_of_a_rescue_contains_the_failure() -> None:
    cause = failed(msg="Task failed: Module failed: no\nspace")
    assert run_output.contains(failed(msg="the copy stopped: no space — expected …"), cause)
    assert run_output.contains(failed(msg="the copy stopped: a cause"), failed(msg="non-zero", stderr="a cause\n"))
    assert not run_output.contains(failed(msg="another"), cause)


def test_message_lines() -> None:
    assert run_output.message_lines(["one", "two\nthree"]) == ["one", "two", "three"]
    assert run_output.message_lines("one") == ["one"]


CHANGES = {"spark1": 2, "spark2": 0}


@pytest.mark.parametrize("verb", sorted(interruption.VERBS))
def test_a_verb_that_changes_a_host_reports_the_state_and_a_command(verb: str) -> None:
    line = interruption.line(verb, "Start it", 67, CHANGES, check=False)
    assert line.startswith(f"Interrupted: {verb} ended after 01:07 in 'Start it'. Changed so far: spark1 by 2 tasks; ")
    assert interruption.VERBS[verb].continues in line
    assert interruption.VERBS[verb].command in line
    assert line.endswith("`ansible-playbook status.yml` shows the state.")
    assert "\n" not in line


@pytest.mark.parametrize("verb", sorted(interruption.READS))
def test_a_verb_that_reads_has_changed_nothing(verb: str) -> None:
    assert "It has changed no host" in interruption.line(verb, "", 1, CHANGES, check=False)


def test_interrupted_before_a_change() -> None:
    assert "changed no host" in interruption.line("deploy", "Start it", 1, CHANGES, check=True)
    line = interruption.line("deploy", "Start it", 1, {"spark1": 0}, check=False)
    assert "No finished task has changed spark1; no server was started or stopped. Fix: the same command" in line


FIRST = interruption.of_start("mine", [], [], "`ansible-playbook stop.yml -l spark1` ends it")
REPLACES = interruption.of_start("mine", ["pair"], ["pair"], "")


def test_what_the_hosts_tell_comes_in_place_of_what_the_verb_leaves_in_general() -> None:
    told = [FIRST.to_json(), REPLACES.to_json(), REPLACES.to_json()]
    line = interruption.line("deploy", "Wait", 1, {"spark1": 1}, check=False, told=told)
    loads = "mine goes on loading if it was started, and no gate judges it"
    assert line.endswith(
        f"Changed so far: spark1 by 1 task; {loads}; pair stops for mine; {loads}. "
        "Fix: the same command again continues, `ansible-playbook stop.yml -l spark1` ends it, "
        "`ansible-playbook switch.yml -e to=pair` brings pair back; `ansible-playbook status.yml` shows the state."
    )
    assert "rollback" not in line


def test_the_parts_of_a_verb_that_consists_of_others() -> None:
    names = ["Lock", "Pull"]
    assert interruption.part(names, 1) == "[1/2] Lock"
    assert interruption.after_a_part(names, 2) == "It ended in [2/2] Pull; the same command again continues."


def test_another_playbook() -> None:
    line = interruption.line("mine", "Start it", 1, {"spark1": 1}, check=False)
    assert "spark1 by 1 task; a task that has begun on a host may still end there" in line


def test_the_texts_of_an_installed_toolkit_name_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of roles and modules too, which no action plugin words."""
    monkeypatch.setattr(paths, "IS_INSTALLED", True)
    text = "it is open. Fix: ansible-playbook deploy.yml -l spark1. Then the same command."
    said = [
        *run_output.failure(FailedTask("Place it", "x.yml:1", {"msg": text})),
        *run_output.message_lines(text),
        interruption.line("stop", "Wait", 1, CHANGES, check=False, told=[FIRST.to_json()]),
    ]
    assert all("vllm-spark " in line and "ansible-playbook" not in line for line in said), said
