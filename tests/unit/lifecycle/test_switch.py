"""The verb switch: the deployments that it considers, its refusals, the exclusion on one Spark, and its report."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fakes.cases import asked, build
from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import exclusion, plan, unit_state
from vllm_spark.deploy import files as deployed_files
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import switch, switch_report
from vllm_spark.sizing import memory

A = {"name": "a", "recipe": "everything", "hosts": ["spark1"]}
B = {"name": "b", "recipe": "everything", "hosts": ["spark1"], "active": False}
OTHER = {"name": "other", "recipe": "everything", "hosts": ["spark2"]}
PAIR = {"name": "pair", "recipe": "everything", "hosts": ["spark1", "spark2"], "active": False}
BOTH = ("spark1", "spark2")


@pytest.mark.parametrize(
    ("inventory", "to", "seen"),
    [
        ([A, B], "b", {"a": False, "b": True}),
        ([A, B], "a", {"a": True, "b": False}),
        # An active deployment that shares no Spark with it is ignored.
        ([A, B, OTHER], "b", {"a": False, "b": True}),
        ([A, B, OTHER, PAIR], "pair", {"a": False, "b": False, "other": False, "pair": True}),
        ([A, OTHER, PAIR], "a", {"a": True, "pair": False}),
    ],
)
def test_choose(inventory: list[dict[str, Any]], to: str, seen: dict[str, bool]) -> None:
    assert {entry["name"]: entry["active"] for entry in switch.choose(inventory, to, BOTH)} == seen


@pytest.mark.parametrize(
    ("to", "limit", "id_", "part"),
    [
        ("c", BOTH, "switch-unknown", "one of a on spark1, pair on spark1+spark2"),
        ("pari", BOTH, "switch-unknown", "Fix: ansible-playbook switch.yml -e to=pair."),
        ("", BOTH, "switch-unknown", "no deployment is named"),
        ("pair", ("spark1",), "switch-outside", "leaves out spark2 of deployment pair, which this switch starts"),
        ("a", ("spark2",), "switch-outside", "leaves out spark1"),
    ],
)
def test_choose_refuses(to: str, limit: tuple[str, ...], id_: str, part: str) -> None:
    with pytest.raises(RefusedError) as refused:
        switch.choose([A, PAIR], to, limit)
    [refusal] = refused.value.refusals
    assert refusal.id == id_
    assert part in str(refusal)


@pytest.mark.parametrize(
    ("plans", "limit", "ids"),
    [
        ({"spark1": {"stop_units": [], "reason": "it is not running"}}, BOTH, []),
        ({"spark1": {"stop_units": ["vllm@pair.service"], "reason": ""}}, BOTH, []),
        # The pair runs, and only one rank would stop.
        ({"spark1": {"stop_units": ["vllm@pair.service"], "reason": ""}}, ("spark1",), ["switch-outside"]),
        ({"spark1": {"stop_units": [], "reason": unit_state.LAUNCH_CHANGED}}, BOTH, ["switch-runs-already"]),
        ({"spark1": {"stop_units": [], "reason": unit_state.EDITED}}, BOTH, ["switch-runs-already"]),
        ({"spark1": {"stop_units": [], "reason": ""}, "spark2": {"has_rank": False, "stop_units": []}}, BOTH, []),
        ({"spark1": {"stop_units": [], "reason": "lent: until 18:30", "lent": "until 18:30"}}, BOTH, ["lent"]),
    ],
)
def test_refusals(plans: dict[str, dict[str, Any]], limit: tuple[str, ...], ids: list[str]) -> None:
    # `beside` is active too, and comes first.
    chosen = switch.choose([{**A, "name": "beside"}, {**A, "active": True}, PAIR], "a", BOTH)
    whole = {host: {**plan.Plan(unit="vllm@a.service").to_json(), **part} for host, part in plans.items()}
    found = list(switch.refusals(chosen, whole, limit))
    assert [refusal.id for refusal in found] == ids
    assert all("a is lent on spark1" in str(refusal) for refusal in found if refusal.id == "lent")


@pytest.mark.parametrize(
    ("stop", "running", "old"),
    [
        ([], [], ""),
        (["vllm@a.service"], ["vllm@a.service"], "vllm@a.service"),
        # An interrupted run had stopped it; it is still enabled.
        (["vllm@a.service"], [], "vllm@a.service"),
        (["vllm@a.service", "vllm@b.service"], ["vllm@b.service"], "vllm@b.service"),
    ],
)
def test_the_deployments_that_a_failed_switch_restores(stop: list[str], running: list[str], old: str) -> None:
    assert switch.before(stop, running) == old


DROP_IN = """\
# Written by vllm-spark. This Spark's memory holds one model: a start of one stops the others first.
[Unit]
Conflicts=vllm@a.service vllm@c.service
After=vllm@a.service
Before=vllm@c.service
"""


def test_exclusion() -> None:
    assert exclusion.drop_in_text("b", ["a", "c"]) == DROP_IN
    assert "Before" not in exclusion.drop_in_text("z", ["a"])


@pytest.mark.parametrize(
    ("inactive", "there", "excluded"),
    [
        ((), [], []),
        (("b",), [], ["b"]),
        ((), ["stranger", "demo"], ["stranger"]),
        (("b",), ["b", "stranger"], ["b", "stranger"]),
    ],
)
def test_the_plan_keeps_the_others_off(
    inactive: tuple[str, ...],
    there: list[str],
    excluded: list[str],
    resolve: Callable[..., Spec],
    facts: dict[str, Any],
) -> None:
    spec = Spec.from_json({**resolve().to_json(), "inactive": inactive})
    created = build(spec, {**facts, "placed": there})
    files = {file.path: file for file in created.files}
    folder = "/etc/systemd/system/vllm@demo.service.d"
    result = files.get(f"{folder}/exclude.conf")
    assert (result.content if result else "") == (exclusion.drop_in_text("demo", excluded) if excluded else "")
    assert (folder in created.folders) == bool(excluded)
    assert (files["/usr/local/bin/vllm-switch"].mode, files["/etc/vllm-spark/demo/launch"].mode) == ("0755", "0755")


def test_an_enabled_deployment_would_start_at_boot_so_it_is_stopped(
    resolve: Callable[..., Spec], facts: dict[str, Any]
) -> None:
    spec = Spec.from_json({**resolve().to_json(), "inactive": ["b", "c"]})
    # The unit file of b is missing, so systemd reports no state; the next deploy installs it again.
    facts["units"] |= {"vllm@b.service": {"UnitFileState": ""}, "vllm@c.service": {"UnitFileState": "disabled"}}
    facts["enabled_units"] = ["vllm@b.service"]
    assert build(spec, facts).stop_units == ["vllm@b.service"]
    assert "vllm@b.service" in asked(spec)["units"]
    idle, text = plan.of_host({"spark1": HostIntent("spark1")}, {"spark1": facts}, "spark1", "test")
    assert idle.stop_units == ["vllm@b.service"]
    *modules, program = [file.path for file in idle.files]
    assert (program, modules) == ("/usr/local/bin/vllm-switch", [file.path for file in deployed_files.modules()])
    assert {path.rpartition("/")[0] for path in modules} <= set(idle.folders)
    assert text == ["vllm@b.service would be stopped: no deployment is active here"]


ANALYZE = shutil.which("systemd-analyze")
JOB = re.compile(r"Installed new job vllm@([a-z]+)\.service/(\w+)")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed, which shows what a boot would do")
@pytest.mark.parametrize(
    ("with_drop_in", "may_start"),
    [
        (("a", "b", "c"), [{"a"}, {"b"}, {"c"}]),
        (("b", "c"), [{"a"}, {"b"}, {"c"}]),
        # The units of b and c do not exclude each other; both exclude a.
        (("a",), [{"a"}, {"b", "c"}]),
        ((), [{"a", "b", "c"}]),
    ],
)
def test_a_boot_starts_only_one_of_the_enabled_deployments(
    with_drop_in: tuple[str, ...], may_start: list[set[str]], tmp_path: Path
) -> None:
    names = ["a", "b", "c"]
    unit = (paths.TEMPLATES / "vllm@.service").read_text().replace("docker.service", "basic.target")
    (tmp_path / "vllm@.service").write_text(unit.replace("/etc/vllm-spark/%i/launch", "/bin/true"))
    (tmp_path / "boot.target").write_text("[Unit]\nWants=" + " ".join(f"vllm@{name}.service" for name in names) + "\n")
    for target in ("basic", "sysinit", "shutdown", "network-online"):
        (tmp_path / f"{target}.target").write_text("[Unit]\n")
    for name in with_drop_in:
        folder = tmp_path / f"vllm@{name}.service.d"
        folder.mkdir()
        (folder / "exclude.conf").write_text(exclusion.drop_in_text(name, [other for other in names if other != name]))
    text = subprocess.run(
        [str(ANALYZE), "--user", "verify", "--man=no", str(tmp_path / "boot.target")],
        env={**os.environ, "SYSTEMD_UNIT_PATH": str(tmp_path), "SYSTEMD_LOG_LEVEL": "debug",
             "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    ).stderr  # fmt: skip
    assert "ordering cycle" not in text
    assert {name for name, kind in JOB.findall(text) if kind == "start"} in may_start, text[-2000:]


@pytest.fixture
def on_the_spark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program vllm-switch. It changes the path and writes no byte code, which ends with the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)
    return importlib.import_module("vllm_spark.node.switch")


@pytest.mark.parametrize(
    ("budget", "asked"),
    [
        ({"utilization": 0.5, "free_floor_bytes": 7}, 0),
        ({"utilization": 0.1, "loading_peak_bytes": 60 << 30}, 0),
        ({"kv_cache_bytes": 9 << 30, "utilization": 0.01}, 0),
        ({"kv_cache_bytes": 9 << 30, "utilization": 0.85}, 0.85),
        ({"kv_cache_bytes": 9 << 30, "loading_peak_bytes": 5}, 0.92),
    ],
)
@pytest.mark.parametrize("total", [64 << 30, 128 << 30])
def test_the_host_and_the_plan_compute_the_same_free_memory(
    budget: dict[str, Any], asked: float, total: int, on_the_spark: ModuleType
) -> None:
    """With a cache of fixed size the engine also asks for its share, of which it takes nothing."""
    recipe = {
        "memory": budget,
        "topology": {"nodes": 1, "tensor_parallel": 1, "executor": "uni"},
        "args": {"kv-offloading-size": 3},
        "env": {},
        "gates": {},
        "engine": {"version": "0.30.0"},
        "model": {"size_bytes": 3 << 30, "repository": "a/b"},
    }
    held = memory.needed_bytes(recipe, total) + memory.floor_bytes(recipe)
    wanted = max(held, int(asked * total) + 2 * 1256 * (1 << 20)) if asked else held
    assert memory.required_bytes(recipe, total) == pytest.approx(wanted, abs=1)
    assert on_the_spark.needed(memory.requirement(recipe), total) == memory.required_bytes(recipe, total)


def test_a_record_of_release_0_1_0_is_read(on_the_spark: ModuleType) -> None:
    assert on_the_spark.needed({"share": 0.5, "bytes": 7, "floor_bytes": 3}, 100) == 53
    assert on_the_spark.needed({}, 100) == 0


DID = {
    "host": "spark1",
    "stop": ["a"],
    "others": [],
    "drained": {"drain_s": 1.5, "left": 0},
    "steps": {"stop_s": 2.0, "memory_s": 3.0, "start_s": 0.5},
    "judged": {"waited_s": 20.0},
    "total_s": 30.0,
    "judged_s": 24.0,
}
WORKER = {**DID, "host": "spark2", "drained": {}, "steps": {"stop_s": 4.0}, "judged": {}}


@pytest.mark.parametrize(
    ("did", "phases"),
    [
        ([DID], {"stop_s": 2.0, "memory_s": 3.0, "start_s": 0.5, "ready_s": 20.0, "gates_s": 4.0, "between_s": 0.5}),
        # Hosts run in parallel, and a Spark that only stopped a rank has no verdicts.
        ([DID, WORKER], {"stop_s": 4.0, "memory_s": 3.0, "ready_s": 20.0, "gates_s": 4.0, "between_s": 0.0}),
    ],
)
def test_seconds(did: list[dict[str, Any]], phases: dict[str, float]) -> None:
    took = switch_report.phase_seconds(did)
    assert {key: took[key] for key in phases} == pytest.approx(phases)
    assert took["gap_s"] == 30.0


@pytest.mark.parametrize(
    ("did", "to", "parts", "never"),
    [
        ([DID], "b", ["b holds its gates 30.0 s after the stop: stop 2.0", "`active: true` to b and `active: false`"],
         ["cut off", "left without"]),
        ([{**DID, "drained": {"drain_s": 30.0, "left": 2}}], "b", ["30.0 s of drain, and 2 requests were cut off"], []),
        ([{**DID, "stop": []}], "a", ["a runs, and its gates hold"], ["active:", "after the stop"]),
        ([{**DID, "stop": [], "steps": {}}], "a", ["a ran already, and its gates hold"], ["after the stop"]),
        ([DID, WORKER], "a", ["spark2 is left without a model server"], ["spark1 is left"]),
        # One rank of a pair that did not run was stopped, and the other Spark serves another deployment.
        ([{**DID, "stop": ["pair"]}], "a", [], ["is left without"]),
        ([DID, {**WORKER, "others": ["b"]}], "a", [], ["is left without"]),
    ],
)  # fmt: skip
def test_the_report_of_a_switch(did: list[dict[str, Any]], to: str, parts: list[str], never: list[str]) -> None:
    text = "\n".join(switch_report.success_report(did, [A, B, PAIR], to))
    assert [part for part in parts if part not in text] == []
    assert [part for part in never if part in text] == []


@pytest.mark.parametrize(
    ("restored", "judged", "part"),
    [
        ({}, {}, "nothing came back"),
        ({"name": "a", "ok": True}, {"holds": True}, "a serves again, and its gates hold"),
        (
            {"name": "a", "ok": True},
            {"holds": False, "missed": "no token"},
            "a came back and misses its gates: no token",
        ),
        ({"name": "a", "ok": True}, {}, "not judged"),
        ({"name": "a", "ok": False, "said": "no memory"}, {}, "a did not come back either: no memory"),
    ],
)
def test_the_failure_message_of_a_switch(restored: dict[str, Any], judged: dict[str, Any], part: str) -> None:
    text = switch_report.failure_report("b", "the answer is wrong", restored, judged)
    assert text.startswith("the answer is wrong\nthe switch to b failed; ")
    assert part in text
    assert text.endswith("See docs/runbooks/switch-failed.md")
