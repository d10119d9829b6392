"""The actions of the verb bench: what they refuse, what they measure, and what they write on the controller."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from bench_runs import cell_record

from fakes.fake_ansible import FakeRun
from vllm_spark.bench import evidence
from vllm_spark.deploy import launch, plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import runner


@pytest.fixture
def arguments(resolve: Any) -> dict[str, Any]:
    """Arguments of vllm_bench_plan for a server that runs as planned."""
    return arguments_of(resolve())


def arguments_of(spec: Spec, *, settled: bool = True) -> dict[str, Any]:
    gates = runner.gate_request(spec, launch.fingerprint(spec)).to_json()
    made = plan.Plan(
        settled=settled, unit="vllm@demo.service", env_path="/etc/vllm-spark/demo/env", gates=gates
    ).to_json()
    return {"spec": spec.to_json(), "plan": made, "profile": "compiled", "hours": 0}


def test_a_profile_that_changes_the_server_puts_it_back_after_an_interruption(arguments: dict[str, Any]) -> None:
    run = FakeRun()
    planned = run.act("vllm_bench_plan", **arguments)
    assert (planned["as_is"], planned["changes"], planned["put_back_after_interruption"]) == (False, True, True)
    assert [variant["label"] for variant in planned["variants"]] == ["mode=eager", "mode=compiled"]
    assert "the server is restarted with mode=eager, mode=compiled, and put back" in run.lines[0]


def test_a_profile_that_changes_nothing_measures_the_server_as_it_is(arguments: dict[str, Any]) -> None:
    planned = FakeRun().act("vllm_bench_plan", **{**arguments, "profile": "smoke"})
    assert (planned["as_is"], planned["changes"], planned["put_back_after_interruption"]) == (True, False, False)


def test_a_check_neither_measures_nor_changes(arguments: dict[str, Any]) -> None:
    for profile in ("smoke", "compiled"):
        planned = FakeRun(check_mode=True).act("vllm_bench_plan", **{**arguments, "profile": profile})
        assert not any(planned[name] for name in ("as_is", "changes", "put_back_after_interruption"))


def test_a_change_that_is_measured_is_not_deployed_again(arguments: dict[str, Any]) -> None:
    first = FakeRun().act("vllm_bench_plan", **arguments)
    cells = [json.dumps(cell_record({"decode": [60.0, 60.1]}, cell=cell)) for cell in first["variants"][0]["cells"]]
    content = "\n".join([json.dumps(first["run"]), *cells, '{"record": "cell", "cut'])
    run = FakeRun(output={"demo-compiled.jsonl": content})
    assert [variant["label"] for variant in run.act("vllm_bench_plan", **arguments)["variants"]] == ["mode=compiled"]
    other = json.dumps({**first["run"], "key": {**first["run"]["key"], "launch": "0"}})
    run = FakeRun(output={"demo-compiled.jsonl": "\n".join([other, *cells])})
    assert len(run.act("vllm_bench_plan", **arguments)["variants"]) == 2


def test_a_server_that_does_not_run_as_planned_is_refused(resolve: Any) -> None:
    with pytest.raises(AnsibleActionFail, match="does not run as the inventory describes it"):
        FakeRun().act("vllm_bench_plan", **arguments_of(resolve(), settled=False))


def test_a_job_prints_every_cell_once(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    planned = FakeRun().act("vllm_bench_plan", **arguments)
    cells = planned["variants"][0]["cells"]
    ended = [{**cell_record({"decode": [60.0, 60.1]}, cell=cell), "samples": {}} for cell in cells]
    progress = {"cell": "", "cells": len(cells), "run": 1, "rate": 1.0, "left_s": None, "failed": 0}
    replies = [
        {"progress": {}, "result": {}},
        {"progress": {**progress, "done": 2, "ended": ended[:2]}, "result": {}},
        {"progress": {**progress, "done": len(cells), "ended": ended}, "result": {"ok": True, "failed": 0}},
    ]
    run = FakeRun(modules={"vllm_weights": lambda args: replies.pop(0) if args["action"] == "watch" else {}})
    more = {"accepted": [], "run": planned["run"], "cells": cells, "ends": True}
    assert run.act("vllm_bench", **arguments, **more)["failed_cells"] == 0
    assert [line.split()[1] for line in run.lines] == [f"{number}/{len(cells)}" for number in range(1, len(cells) + 1)]
    assert [args["action"] for _, args in run.calls] == ["start", "watch", "watch", "watch", "stop"]
    request = run.calls[0][1]["request"]
    assert (request["ends"], [cell["id"] for cell in request["cells"]]) == (True, [cell["id"] for cell in cells])


@pytest.mark.parametrize(
    "reply", [{"result": {"ok": False, "detail": "it does not answer"}}, {"failed": True, "msg": "it does not answer"}]
)
def test_a_job_that_fails_is_a_refusal(arguments: dict[str, Any], reply: dict[str, Any]) -> None:
    planned = FakeRun().act("vllm_bench_plan", **arguments)
    more = {"accepted": [], "run": planned["run"], "cells": planned["variants"][0]["cells"], "ends": True}
    with pytest.raises(AnsibleActionFail, match=r"it does not answer.*Fix: "):
        FakeRun(modules={"vllm_weights": reply}).act("vllm_bench", **arguments, **more)


def test_a_worker_measures_nothing(resolve: Any) -> None:
    arguments = arguments_of(replace(resolve(), rank=1))
    assert FakeRun().act("vllm_bench", **arguments, run={}, cells=[], ends=True)["failed_cells"] == 0


def run_of_fetch(arguments: dict[str, Any], folder: Path, **changes: Any) -> tuple[FakeRun, dict[str, Any]]:
    """Return a run whose host has evidence of one cell with these changes, and the arguments of the action."""
    planned = FakeRun().act("vllm_bench_plan", **arguments)
    first = cell_record({"decode": [60.0, 60.1]}, cell=planned["variants"][0]["cells"][0], **changes)
    content = "\n".join(map(json.dumps, [planned["run"], first]))
    slurped = {"content": base64.b64encode(f"{content}\n".encode()).decode()}
    run = FakeRun(modules={"ansible.builtin.slurp": slurped, "ansible.builtin.file": {}})
    return run, {"spec": arguments["spec"], "profile": "compiled", "folder": str(folder)}


def test_a_run_without_figures_fails_after_its_evidence_is_written(arguments: dict[str, Any], tmp_path: Path) -> None:
    lost = {"state": "worthless", "faults": [{"id": "other-clients", "what": "2 requests were active"}]}
    run, wanted = run_of_fetch(arguments, tmp_path / "bench", **lost)
    with pytest.raises(
        AnsibleActionFail, match=r"1 of 1 cells have no figures .* worthless, other-clients: 2 requests"
    ):
        run.act("vllm_bench_fetch", **wanted)
    [written] = (tmp_path / "bench").iterdir()
    assert evidence.read(written).cells
    assert run.lines[0].startswith("worthless: 1 of the cells")


def test_the_evidence_is_written_then_removed_on_the_host(arguments: dict[str, Any], tmp_path: Path) -> None:
    run, wanted = run_of_fetch(arguments, tmp_path / "bench")
    result = run.act("vllm_bench_fetch", **wanted)
    assert evidence.read(Path(result["evidence"])).run["subject"]["deployment"] == "demo"
    assert [name for name, _ in run.calls] == ["ansible.builtin.slurp", "ansible.builtin.file"]
    assert run.lines[0].startswith("unknown: ")


START = {
    "cell": {"id": "chat p128 o32 d0 s1 start=cold", "server": {"start": "cold"}},
    "kind": "cold",
    "label": "cold 1 of 3",
}


def test_a_profile_of_starts_plans_each_start(arguments: dict[str, Any]) -> None:
    planned = FakeRun().act("vllm_bench_plan", **{**arguments, "profile": "start"})
    assert [start["label"] for start in planned["starts"]] == [
        f"{kind} {number} of 3" for kind in ("cold", "warm") for number in (1, 2, 3)
    ]
    assert (planned["as_is"], planned["changes"], planned["has_evidence"]) == (False, False, False)
    assert planned["put_back_after_interruption"]
    assert FakeRun(check_mode=True).act("vllm_bench_plan", **{**arguments, "profile": "start"})["starts"] == []


def test_a_start_is_timed_by_phase(arguments: dict[str, Any]) -> None:
    result = {"ok": True, "seconds": 9.0, "memory_gib": 63.5, "lines": [[4.0, "Starting to load model x"]]}
    run = FakeRun(modules={"vllm_weights": lambda args: {"result": result} if args["action"] == "watch" else {}})
    measured = run.act("vllm_bench_start", plan=arguments["plan"], start=START, note="the page cache stays")["measured"]
    assert (measured["seconds"], measured["phases"]) == (9.0, {"starting": 4.0, "loading_weights": 5.0})
    assert measured["memory_gib"] == 63.5
    assert run.lines == [
        "spark1  the page cache stays",
        "spark1  cold 1 of 3: 9.0 s until the first token (starting 4.0, loading weights 5.0)",
    ]
    assert run.calls[0][1]["request"]["unit"] == "vllm@demo.service"


def test_a_start_that_fails_is_a_refusal(arguments: dict[str, Any]) -> None:
    reply = {"result": {"ok": False, "detail": "gave no token within 300 s"}}
    with pytest.raises(AnsibleActionFail, match="gave no token within 300 s"):
        FakeRun(modules={"vllm_weights": reply}).act("vllm_bench_start", plan=arguments["plan"], start=START)


def test_a_worker_starts_its_unit_and_measures_nothing(resolve: Any) -> None:
    arguments = arguments_of(replace(resolve(), rank=1))
    run = FakeRun(modules={"ansible.builtin.command": {"rc": 0}})
    assert run.act("vllm_bench_start", plan=arguments["plan"], start=START)["measured"] == {}
    assert run.calls[0][1]["argv"][:2] == ["systemctl", "start"]


def test_the_starts_become_the_cells_of_an_evidence(arguments: dict[str, Any], tmp_path: Path) -> None:
    planned = FakeRun().act("vllm_bench_plan", **{**arguments, "profile": "start"})
    starts = [
        {"cell": one["cell"], "seconds": 10.0 + number, "phases": {"starting": 10.0 + number}, "memory_gib": 60.0}
        for number, one in enumerate(planned["starts"])
    ]
    run = FakeRun()
    wanted = {"spec": arguments["spec"], "run": planned["run"], "starts": starts, "folder": str(tmp_path)}
    read = evidence.read(Path(run.act("vllm_bench_starts", **wanted)["evidence"]))
    medians = [cell["figures"]["start"]["median"] for cell in read.cells.values()]
    assert medians == [11.0, 14.0]
    assert {cell["figures"]["memory"]["median"] for cell in read.cells.values()} == {60.0}
    assert run.lines[-1].startswith("Next: vllm-spark bench report ")
