"""Drift: one change on the host per object that a deploy would change, and the reason that is reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import Secrets, in_argv

from fakes.cases import CASES, intents, merge, pair_of
from fakes.deployed_spark import STARTED, deployed_facts
from fakes.recorded_hosts import HOSTS
from vllm_spark.deploy import drift, plan, ranks
from vllm_spark.deploy.drift import Drift
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec

LAUNCH = "/etc/vllm-spark/demo/launch"
UNIT_FILE = "/etc/systemd/system/vllm@.service"
GATES = "/etc/vllm-spark/demo/gates.json"
LIVENESS = "/usr/local/lib/vllm-spark/liveness"
SAME = {"added": [], "removed": [], "changed": [], "same": False}


@pytest.fixture
def spec(resolve: Callable[..., Spec]) -> Spec:
    return resolve(secrets={"HF_TOKEN": True, "VLLM_API_KEY": True})


@pytest.fixture
def host_facts(spec: Spec, facts: dict[str, Any]) -> dict[str, Any]:
    return deployed_facts(spec, facts)


def of(spec: Spec, host_facts: dict[str, Any]) -> Drift:
    return drift.of_host(intents({"spark1": spec}), {"spark1": host_facts}, "spark1", "another toolkit")


def test_nothing_differs(spec: Spec, host_facts: dict[str, Any]) -> None:
    assert of(spec, host_facts) == Drift(False)
    assert of(spec, host_facts).summary() == "none"


def container(**changes: Any) -> dict[str, Any]:
    return {"docker": {"containers": {"vllm-demo": changes}}}


def env_reasons(what: str) -> list[str]:
    return [f"env: {what}", f"vllm@demo.service would be restarted: its env file changes: {what}"]


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"files": {GATES: ["0", "0644"]}}, ["files: gates.json"]),
        ({"files": {GATES: None, LIVENESS: ["0", "0755"]}}, ["files: gates.json, liveness"]),
        ({"files": {UNIT_FILE: ["0", "0644"]}}, ["units: vllm@.service"]),
        # The container read the old env when it started.
        ({"env": {**SAME, "added": ["HF_TOKEN"]}}, env_reasons("added HF_TOKEN")),
        (
            {"env": {**SAME, "changed": ["HF_TOKEN"], "removed": ["OLD", "OLDER"]}},
            env_reasons("removed OLD, OLDER; changed HF_TOKEN"),
        ),
        ({"env": SAME}, env_reasons("its mode or other lines")),
        (
            container(image="ghcr.io/owner/engine@sha256:999999999999eee", labels={"vllm-spark.launch": "0"}),
            ["image 999999999999 becomes 111111111111", "vllm@demo.service would be restarted: its launch changed"],
        ),
        ({"env_mtimes": {"demo": STARTED + 1}}, ["vllm@demo.service would be restarted: its env file changed"]),
        (
            {
                "docker": {"containers": {"vllm-demo": None}},
                "units": {"vllm@demo.service": {"ActiveState": "failed"}},
                "running_units": [],
            },
            ["vllm@demo.service would be started: it is not running"],
        ),
        (
            {"units": {"vllm@demo.service": {"UnitFileState": "disabled"}}},
            ["vllm@demo.service would be started: its unit is not enabled"],
        ),
        ({"units": {"vllm@demo.service": {"NeedDaemonReload": "yes"}}}, ["systemd reloads its unit files"]),
        ({"running_units": ["vllm@demo.service", "vllm@strange.service"]}, ["deploy refuses: unknown-deployment"]),
        ({"machine": "x86_64"}, ["deploy refuses: wrong-architecture"]),
    ],
)
def test_every_difference_is_named(
    changes: dict[str, Any], reasons: list[str], spec: Spec, host_facts: dict[str, Any]
) -> None:
    result = of(spec, merge(host_facts, changes))
    assert (result.differs, list(result.reasons)) == (True, reasons)


def test_a_mode_is_a_difference(spec: Spec, host_facts: dict[str, Any]) -> None:
    checksum, _ = host_facts["files"][LAUNCH]
    host_facts["files"][LAUNCH] = [checksum, "0644"]
    assert of(spec, host_facts).reasons == ("launch",)


def test_the_lines_of_the_launch_that_differ_are_shown(
    resolve: Callable[..., Spec], spec: Spec, host_facts: dict[str, Any]
) -> None:
    another = resolve(secrets={"HF_TOKEN": True, "VLLM_API_KEY": True}, overrides={"args": {"max-model-len": 1234}})
    result = of(another, host_facts)
    assert result.reasons[0] == "launch"
    assert "vllm@demo.service would be restarted: its launch changed" in result.reasons
    assert [line for line in result.launch_diff if "max-model-len" in line] == [
        "-  --max-model-len 65536 \\",
        "+  --max-model-len 1234 \\",
    ]
    # Only the fingerprint differs too, in two lines.
    assert len(result.launch_diff) == 6
    assert result.summary(1) == f"launch; {len(result.reasons) - 1} more"


def test_a_launch_that_differs_in_every_line_is_cut(spec: Spec, host_facts: dict[str, Any]) -> None:
    host_facts["files"][LAUNCH] = ["0", "0755"]
    host_facts["status"]["deployments"]["demo"]["launch"] = "".join(f"line {number}\n" for number in range(200))
    diff = of(spec, host_facts).launch_diff
    assert len(diff) == drift.DIFF_LINES + 1
    assert "deploy.yml --check --diff" in diff[-1]


def test_a_deployment_that_is_not_there_has_no_lines_of_a_launch(spec: Spec, host_facts: dict[str, Any]) -> None:
    del host_facts["files"][LAUNCH]
    host_facts["status"]["deployments"] = {}
    result = of(spec, host_facts)
    assert result.differs
    assert result.launch_diff == ()


def test_a_deploy_that_changes_nothing_repeats_no_notes(spec: Spec, host_facts: dict[str, Any]) -> None:
    def lines(*, acts: bool) -> list[str]:
        return plan.of_host(
            intents({"spark1": spec}), {"spark1": host_facts}, "spark1", "test", plan.Purpose(acts=acts)
        )[1]

    assert len(lines(acts=True)) == 1
    assert lines(acts=True)[0].endswith("stays, it runs as planned")
    assert len(lines(acts=False)) > 1


def test_an_idle_spark(facts: dict[str, Any]) -> None:
    facts["units"] = {"vllm@old.service": {"ActiveState": "active"}}
    asked = {"intents": {"spark1": HostIntent("spark1")}, "facts": {"spark1": facts}, "host": "spark1", "toolkit": "x"}
    assert drift.of_host(**asked) == Drift(False)
    facts["running_units"] = ["vllm@old.service"]
    assert drift.of_host(**asked) == Drift(True, ("vllm@old.service would be stopped",))


def test_a_pair_is_compared_with_both_of_its_launches(facts: dict[str, Any], tmp_path: Path) -> None:
    specs, hosts = pair_of(facts, tmp_path)
    ranked = ranks.join(specs, hosts)
    agreed = {host: deployed_facts(ranked[host], hosts[host]) for host in HOSTS}
    assert [drift.of_host(intents(specs), agreed, host, "test") for host in HOSTS] == [Drift(False)] * 2
    without = {"spark1": agreed["spark1"]}
    assert drift.of_host(intents(specs), without, "spark1", "test") == drift.unknown("spark2 was not asked")
    apart = copy.deepcopy(agreed)
    apart["spark2"]["fabric"]["hcas"] = []
    assert drift.of_host(intents(specs), apart, "spark1", "test").reasons == ("deploy refuses: fabric-none",)


@pytest.mark.parametrize("case", [file for file in CASES if file.stem.startswith("argv-")], ids=lambda file: file.stem)
def test_no_argument_of_a_launch_is_masked_as_a_secret(case: Path) -> None:
    """A masked argument would make the planned launch differ from the installed one."""
    words, secrets = json.loads(case.read_text())["expect"]["argv"], Secrets()
    secrets.add(in_argv(words))
    script = " ".join(words)
    secrets.learn(script)
    assert secrets.masker()(script) == script


@pytest.mark.parametrize(
    ("changes", "installed"),
    [
        ({}, True),
        ({"files": {LAUNCH: ["0", "0755"]}}, False),
        ({"files": {UNIT_FILE: None}}, False),
        ({"env": SAME}, False),
        ({"env": None}, False),
        ({"folders": []}, False),
    ],
)
def test_a_host_with_every_file_as_planned_is_not_written(
    spec: Spec, host_facts: dict[str, Any], changes: dict[str, Any], installed: bool
) -> None:
    for key, value in changes.items():
        merged = {**host_facts[key], **value} if key == "files" else value
        host_facts[key] = {k: v for k, v in merged.items() if v} if key == "files" else merged
    assert plan.of_host(intents({"spark1": spec}), {"spark1": host_facts}, "spark1", "test")[0].installed is installed
