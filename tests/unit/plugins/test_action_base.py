"""The base class of the action plugins: results, refusals, printed lines and module runs."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleActionSkip

from fakes.fake_ansible import FakeRun, load_action, load_plugin
from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark_ansible.action import SparkAction

REFUSALS = [Refusal(f"id-{n}", f"fault {n}", "none", "do it.", "some-page") for n in (1, 2)]


class Example(SparkAction):
    """An action whose argument selects its behaviour."""

    def act(self) -> dict[str, Any]:
        if "refuse" in self.args:
            raise RefusedError(REFUSALS)
        if "module" in self.args:
            return self.execute(self.args["module"], {"name": "x"}, self.args.get("key", ""))
        self.quiet = bool(self.args.get("quiet"))
        self.say("one", "two")
        self.show("of the whole run")
        return dict(self.args.get("result", {}))


def test_a_result_is_unchanged_by_default() -> None:
    assert FakeRun().act(Example) == {"changed": False}
    assert FakeRun().act(Example, result={"changed": True, "n": 1}) == {"changed": True, "n": 1}


def test_a_quiet_result_is_kept_out_of_the_output() -> None:
    assert FakeRun().act(Example, quiet=True) == {"changed": False, "_ansible_verbose_override": True}


def test_a_refusal_fails_the_task_once_with_every_reason() -> None:
    with pytest.raises(AnsibleActionFail) as failed:
        FakeRun().act(Example, refuse=True)
    assert failed.value.message == "\n".join(map(str, REFUSALS))
    # Ansible appends the text of a cause.
    assert failed.value.__cause__ is None
    assert failed.value.__suppress_context__


def test_a_line_starts_with_its_host() -> None:
    run = FakeRun(host="spark2")
    run.act(Example)
    assert run.lines == ["spark2  one", "spark2  two", "of the whole run"]


def test_a_module_runs_with_its_arguments() -> None:
    run = FakeRun(modules={"probe": {"changed": True, "value": 1}})
    assert run.act(Example, module="probe", key="value") == {"changed": True, "value": 1}
    assert run.calls == [("probe", {"name": "x"})]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"failed": True, "msg": "no such file"}, "no such file"),
        ({}, "module probe returned no value"),
        ({"failed": False}, "module probe returned no value"),
    ],
)
def test_a_module_without_its_field_fails_the_task(result: dict[str, Any], message: str) -> None:
    with pytest.raises(AnsibleActionFail) as failed:
        FakeRun(modules={"probe": result}).act(Example, module="probe", key="value")
    assert failed.value.message == message
    assert failed.value.result == {**result, "failed": True, "msg": message}


def test_a_failed_module_is_returned_if_no_field_is_required() -> None:
    result = {"failed": True, "msg": "no such file"}
    assert FakeRun(modules={"probe": result}).act(Example, module="probe") == {"changed": False, **result}


def test_check_mode_skips_an_action_that_does_not_support_it() -> None:
    with pytest.raises(AnsibleActionSkip):
        FakeRun(check_mode=True).act("spark_lock", state="taken")


@pytest.mark.parametrize("name", sorted(file.stem for file in (paths.ROOT / "plugins" / "action").glob("*.py")))
def test_every_action_has_the_base(name: str) -> None:
    assert issubclass(load_action(name), SparkAction)
    assert "run" not in vars(load_action(name))


def test_the_base_imports_little() -> None:
    """Each task pays for its imports."""
    code = (
        "import sys, ansible.plugins.action, ansible.utils.display; before = set(sys.modules);"
        "import vllm_spark_ansible.action; print(*sorted(set(sys.modules) - before))"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert imported == [
        "vllm_spark",
        "vllm_spark.core",
        "vllm_spark.core.paths",
        "vllm_spark.core.refusal",
        "vllm_spark.core.run_command",
        "vllm_spark_ansible",
        "vllm_spark_ansible.action",
        "vllm_spark_ansible.arguments",
        "vllm_spark_ansible.results",
    ]


def test_every_filter_of_a_role_exists() -> None:
    """ansible-playbook --syntax-check does not notice a missing filter."""
    files = [file.read_text() for file in (paths.ROOT / "roles").rglob("*.yml")]
    used = {name for text in files for name in re.findall(r"\| vllm_spark\.toolkit\.(vllm_\w+)", text)}
    assert used == load_plugin("filter", "vllm").FilterModule().filters().keys()


def test_no_role_relies_on_ignore_unreachable() -> None:
    """Ansible does not read it in a play with any_errors_fatal, which the verbs that change a pair have."""
    files = [file for file in (paths.ROOT / "roles").rglob("*.yml") if "ignore_unreachable: true" in file.read_text()]
    assert files == []


def test_every_phase_of_a_task_is_one_of_its_action() -> None:
    """An unknown phase would run another one."""
    tasks = re.compile(r"^ +vllm_spark\.toolkit\.(vllm_\w+):\n +phase: (\w+)$", re.MULTILINE)
    used = {actual for file in (paths.ROOT / "roles").rglob("*.yml") for actual in tasks.findall(file.read_text())}
    assert used == {
        *(("vllm_bench", phase) for phase in ("sample", "cells", "start")),
        *(("vllm_bench_evidence", phase) for phase in ("read", "fetch", "starts")),
        *(("vllm_collect", phase) for phase in ("host", "pairs")),
        *(("vllm_fabric_link", phase) for phase in ("check", "plan", "reached", "pinged")),
        *(("vllm_history", phase) for phase in ("read", "record", "table")),
        *(("vllm_metrics", phase) for phase in ("place", "start")),
        *(("vllm_notify", phase) for phase in ("install", "report")),
        *(("vllm_pull_plan", phase) for phase in ("resolve", "plan", "prove")),
        *(("vllm_replacement", phase) for phase in ("unit", "decide", "result", "report")),
        *(("vllm_rollback", phase) for phase in ("choose", "decide", "end")),
        *(("vllm_topology", phase) for phase in ("judge", "rates")),
        *(("vllm_verify", phase) for phase in ("gates", "edge", "end")),
        *(("vllm_switch", phase) for phase in ("choose", "order", "steps")),
    }


def test_the_package_of_decisions_does_not_import_ansible() -> None:
    imports = re.compile(r"^\s*(?:from|import) (?:ansible|vllm_spark_ansible)\b", re.MULTILINE)
    assert [
        str(file) for file in (paths.ROOT / "src" / "vllm_spark").rglob("*.py") if imports.search(file.read_text())
    ] == []
