"""The actions of the verb bench: what they refuse, what they measure, and what they write on the controller."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail

from fakes.bench_runs import cell_record
from fakes.fake_ansible import FakeRun
from vllm_spark.bench import evidence
from vllm_spark.bench.measured_here import Measurements
from vllm_spark.deploy import launch, plan
from vllm_spark.inventory.spec import Spec
from vllm_spark.sizing.constants import constants_of
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
    progress["note"] = "continues the run that began then"
    replies = [
        {"progress": {}, "result": {}},
        {"progress": {**progress, "done": 2, "ended": ended[:2]}, "result": {}},
        {"progress": {**progress, "done": len(cells), "ended": ended}, "result": {"ok": True, "failed": 0}},
    ]
    run = FakeRun(modules={"spark_host_job": lambda args: replies.pop(0) if args["action"] == "watch" else {}})
    more = {"accepted": [], "run": planned["run"], "cells": cells, "ends": True}
    assert run.act("vllm_bench", phase="cells", **arguments, **more)["failed_cells"] == 0
    assert run.lines.pop(0) == "spark1  continues the run that began then"
    assert [line.split()[1] for line in run.lines] == [f"{number}/{len(cells)}" for number in range(1, len(cells) + 1)]
    assert [args["action"] for _, args in run.calls] == ["start", "watch", "watch", "watch", "stop"]
    request = run.calls[0][1]["request"]
    assert (request["ends"], [cell["id"] for cell in request["cells"]]) == (True, [cell["id"] for cell in cells])


# what happens -> the replies of spark_host_job
FAILURES: dict[str, Any] = {
    "the job fails": {"result": {"ok": False, "detail": "it does not answer"}},
    "it does not start": {"failed": True, "msg": "it does not answer"},
    "it cannot be watched": lambda args: {"failed": args["action"] == "watch", "msg": "it does not answer"},
}


@pytest.mark.parametrize("reply", FAILURES.values(), ids=FAILURES)
def test_a_job_that_fails_is_a_refusal(arguments: dict[str, Any], reply: Any) -> None:
    planned = FakeRun().act("vllm_bench_plan", **arguments)
    more = {"accepted": [], "run": planned["run"], "cells": planned["variants"][0]["cells"], "ends": True}
    with pytest.raises(AnsibleActionFail, match=r"it does not answer.*Fix: "):
        FakeRun(modules={"spark_host_job": reply}).act("vllm_bench", phase="cells", **arguments, **more)


def test_a_worker_samples_and_does_not_wait(arguments: dict[str, Any], resolve: Any) -> None:
    cells = FakeRun().act("vllm_bench_plan", **arguments)["variants"][0]["cells"]
    of_worker = arguments_of(replace(resolve(), rank=1, host="spark2"))
    run = FakeRun(host="spark2", modules={"spark_host_job": {}})
    assert run.act("vllm_bench_plan", **of_worker)["beside_head"]
    assert run.act("vllm_bench", phase="cells", **of_worker, run={}, cells=cells, ends=True)["failed_cells"] == 0
    assert run.calls == []
    run.act("vllm_bench", phase="sample", **of_worker, cells=cells)
    [(_, started)] = run.calls
    assert (started["action"], started["argv"][2:]) == ("start", ["vllm_spark.node.bench.rank_job", "bench"])
    request = started["request"]
    assert (request["host"], request["path"]) == ("spark2", "/var/lib/vllm-spark/bench/demo-compiled.samples.jsonl")
    # 12 cells of up to 5 runs, the longest of 128 tokens, on a server with 7 tok/s, four times as slow.
    assert 7200 < request["limit_s"] < 6 * 3600
    run.act("vllm_bench", phase="sample", **{**of_worker, "profile": "soak", "hours": 8}, cells=cells)
    assert run.calls[-1][1]["request"]["limit_s"] > 8 * 3600


def test_a_sampler_that_does_not_start_is_a_refusal(arguments: dict[str, Any], resolve: Any) -> None:
    of_worker = arguments_of(replace(resolve(), rank=1, host="spark2"))
    run = FakeRun(host="spark2", modules={"spark_host_job": {"failed": True, "msg": "the disk is full"}})
    with pytest.raises(AnsibleActionFail, match=r"spark2: its memory.*the disk is full.*Fix: "):
        run.act("vllm_bench", phase="sample", **of_worker, cells=[])


def test_the_head_and_a_check_have_no_sampler(arguments: dict[str, Any], resolve: Any) -> None:
    assert not FakeRun().act("vllm_bench_plan", **arguments)["beside_head"]
    of_worker = arguments_of(replace(resolve(), rank=1))
    assert not FakeRun(check_mode=True).act("vllm_bench_plan", **of_worker)["beside_head"]


def printed(content: str) -> str:
    """Return what the command of ranks.command prints, on a host without an offset."""
    return f"{time.time():.9f}\n{content}\n{time.time():.9f}\n"


def pair_of(resolve: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specs of a pair, head first."""
    spec = resolve()
    spec = replace(spec, deployment=replace(spec.deployment, hosts=("spark1", "spark2")))
    return spec.to_json(), replace(spec, rank=1, host="spark2").to_json()


def test_the_evidence_is_written_with_the_samples_of_all_ranks(
    arguments: dict[str, Any], resolve: Any, tmp_path: Path
) -> None:
    head, worker = pair_of(resolve)
    planned = FakeRun().act("vllm_bench_plan", **arguments)
    now = time.time()
    first = cell_record({"decode": [60.0, 60.1]}, cell=planned["variants"][0]["cells"][0]) | {"clock": now - 60}
    evidence_text = "\n".join(map(json.dumps, [planned["run"], first]))
    gpu = {"host": "spark2", "gpu": "NVIDIA GB10"}
    capped = [{"t": now - 60 + second, "sm_mhz": 1800.0, "gpu_percent": 96.0} for second in range(9)]
    samples_text = "\n".join(map(json.dumps, [gpu, *capped]))
    hostvars = {
        host: {
            "vllm_bench_read": FakeRun(host=host, output={name: printed(content)}).act(
                "vllm_bench_evidence", phase="read", spec=spec, profile="compiled"
            )
        }
        for host, spec, name, content in (
            ("spark1", head, "demo-compiled.jsonl", evidence_text),
            ("spark2", worker, "demo-compiled.samples.jsonl", samples_text),
        )
    }
    assert hostvars["spark2"]["vllm_bench_read"]["path"] == "/var/lib/vllm-spark/bench/demo-compiled.samples.jsonl"
    run = FakeRun(hostvars=hostvars)
    kept = {"folder": str(tmp_path / "bench")}
    wanted = {"profile": "compiled", "accepted": [], **kept}
    fetched = run.act("vllm_bench_evidence", phase="fetch", spec=head, **wanted)
    assert "1 of 1 cells have no figures that count" in fetched["refusal"]
    assert "clock-cap: spark2: 1800 MHz" in fetched["refusal"]
    read = evidence.read(Path(fetched["evidence"]))
    [cell] = read.cells.values()
    assert list(cell["samples"]) == ["spark-1", "spark2"]
    assert (cell["state"], cell["faults"][0]["id"]) == ("worthless", "clock-cap")
    assert run.lines[0].startswith("spark1  worthless: clock-cap: spark2: 1800 MHz")
    assert "clock-cap: spark2: 1800 MHz" in run.lines[1]
    of_worker = FakeRun(host="spark2", hostvars=hostvars).act(
        "vllm_bench_evidence", phase="fetch", spec=worker, **wanted
    )
    assert (of_worker["evidence"], of_worker["refusal"]) == ("", "")
    accepted = run.act("vllm_bench_evidence", phase="fetch", spec=head, **{**wanted, "accepted": ["clock-cap"]})
    assert accepted["refusal"] == ""


def test_a_broken_file_of_a_head_does_not_stay_on_it(arguments: dict[str, Any], resolve: Any, tmp_path: Path) -> None:
    """The role removes the file on the host after this task, and the next run begins anew."""
    spec, run = resolve().to_json(), FakeRun().act("vllm_bench_plan", **arguments)["run"]
    content = "\n".join(map(json.dumps, [run, {"record": "cell", "cell": {"id": "x"}, "state": "failed"}]))
    read = FakeRun(output={"demo-compiled.jsonl": printed(content)}).act(
        "vllm_bench_evidence", phase="read", spec=spec, profile="compiled"
    )
    fetching = FakeRun(hostvars={"spark1": {"vllm_bench_read": read}})
    fetched = fetching.act(
        "vllm_bench_evidence",
        phase="fetch",
        spec=spec,
        profile="compiled",
        accepted=[],
        folder=str(tmp_path),
    )
    assert re.search(r"line 2: .*Fix: ", fetched["refusal"])
    assert Path(fetched["evidence"]).exists()


def test_a_host_whose_file_cannot_be_read_is_a_refusal(resolve: Any) -> None:
    head, worker = pair_of(resolve)
    for spec, output in ((head, {}), (head, {"demo": printed("")}), (worker, {})):
        with pytest.raises(AnsibleActionFail, match=r"has no evidence or cannot be read.*Fix: "):
            FakeRun(output=output).act("vllm_bench_evidence", phase="read", spec=spec, profile="compiled")
    # A rank without samples is judged in the evidence.
    read = FakeRun(output={"demo": printed("")}).act(
        "vllm_bench_evidence", phase="read", spec=worker, profile="compiled"
    )
    assert read["reading"]["text"] == ""


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
    run = FakeRun(modules={"spark_host_job": lambda args: {"result": result} if args["action"] == "watch" else {}})
    measured = run.act("vllm_bench", phase="start", plan=arguments["plan"], start=START, note="the page cache stays")[
        "measured"
    ]
    assert (measured["seconds"], measured["phases"]) == (9.0, {"starting": 4.0, "loading_weights": 5.0})
    assert measured["memory_gib"] == 63.5
    assert run.lines == [
        "spark1  the page cache stays",
        "spark1  cold 1 of 3: 9.0 s until the first token (starting 4.0, loading weights 5.0)",
    ]
    assert run.calls[0][1]["request"]["unit"] == "vllm@demo.service"


@pytest.mark.parametrize("reply", FAILURES.values(), ids=FAILURES)
def test_a_start_that_fails_is_a_refusal(arguments: dict[str, Any], reply: Any) -> None:
    with pytest.raises(AnsibleActionFail, match=r"it does not answer.*Fix: "):
        FakeRun(modules={"spark_host_job": reply}).act("vllm_bench", phase="start", plan=arguments["plan"], start=START)


def test_a_worker_starts_its_unit_and_measures_nothing(resolve: Any) -> None:
    arguments = arguments_of(replace(resolve(), rank=1))
    run = FakeRun(modules={"ansible.builtin.command": {"rc": 0}})
    assert run.act("vllm_bench", phase="start", plan=arguments["plan"], start=START)["measured"] == {}
    assert run.calls[0][1]["argv"][:2] == ["systemctl", "start"]


def test_the_starts_become_the_cells_of_an_evidence(arguments: dict[str, Any], tmp_path: Path) -> None:
    planned = FakeRun().act("vllm_bench_plan", **{**arguments, "profile": "start"})
    starts = [
        {"cell": one["cell"], "seconds": 10.0 + number, "phases": {"starting": 10.0 + number}, "memory_gib": 60.0}
        for number, one in enumerate(planned["starts"])
    ]
    run = FakeRun()
    wanted = {"spec": arguments["spec"], "run": planned["run"], "starts": starts, "folder": str(tmp_path)}
    read = evidence.read(Path(run.act("vllm_bench_evidence", phase="starts", **wanted)["evidence"]))
    medians = [cell["figures"]["start"]["median"] for cell in read.cells.values()]
    assert medians == [11.0, 14.0]
    assert {cell["figures"]["memory"]["median"] for cell in read.cells.values()} == {60.0}
    assert run.lines[-1].startswith("Next: vllm-spark bench report ")
    recipe = Spec.from_json(arguments["spec"]).recipe
    known = Measurements(tmp_path, constants_of({})).of(read.run["key"]["hosts"].split(","), recipe)
    assert known
    assert (known.loading_peak, known.speed) == (60 * 2**30, None)
