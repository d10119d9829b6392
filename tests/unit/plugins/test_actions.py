"""Each action plugin with fake results of its modules: what it runs, prints and returns."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from fakes.cases import asked
from fakes.fake_ansible import HOSTS, FakeRun
from project_files import RECIPE_FOLDERS
from vllm_spark.core import own_process, paths, removed
from vllm_spark.deploy import launch, preview_table
from vllm_spark.deploy.plan import Plan
from vllm_spark.deploy.preview import Preview
from vllm_spark.inventory import variables
from vllm_spark.inventory.edge import EdgeSettings
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import rollback_target
from vllm_spark.sizing import reference_spark
from vllm_spark.transfer import bundle_server
from vllm_spark.verify import runner
from vllm_spark_ansible.action import UnreachableError

Vars = dict[str, dict[str, Any]]
DEPLOYMENT = {"name": "demo", "recipe": "everything", "hosts": ["spark1"]}
PAIR = {"name": "pair", "recipe": "two-sparks", "hosts": HOSTS}
HOLDER = {"run": "r", "user": "ben", "controller": "laptop", "machine": "m", "pid": 7, "started": "9", "verb": "stop"}


def inventory(*deployments: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Arguments of vllm_spec and vllm_pull_plan."""
    return {
        "deployments": list(deployments),
        "host": "spark1",
        "sparks": HOSTS,
        "limit": HOSTS,
        "recipe_folders": [str(folder) for folder in RECIPE_FOLDERS],
        "lock_file": "none.yml",
        "secrets": {"HF_TOKEN": "x"},
        "accepted": [],
        "site": {"hub_dir": "/hub", "cache_dir": "/cache", "pip_index": ""},
        "edge": {"open": True},
        **more,
    }


@pytest.fixture
def spec() -> Spec:
    return Spec.from_json(FakeRun().act("vllm_spec", **inventory(DEPLOYMENT))["spec"])


@pytest.fixture
def good(facts: dict[str, Any], spec: Spec) -> dict[str, Any]:
    """Facts of a Spark on which nothing refuses the spec."""
    paths = asked(spec)["paths"]
    checksums = asked(spec)["checksums"]
    files = {mount["sha256"] for mount in spec.recipe.get("mounts", []) if mount["from"] == "model"}
    return facts | {"paths": dict.fromkeys(paths, True), "checksums": dict.fromkeys(checksums, next(iter(files), None))}


@pytest.fixture
def planned(spec: Spec, good: dict[str, Any]) -> Vars:
    """Variables that spark_precheck and the role vllm_plan register."""
    read = {"facts": good}
    resolved = {"spec": spec.to_json()}
    return {"spark1": {"spark_precheck_resolved": resolved, "spark_precheck_box": read, "vllm_plan_box": read}}


def fails(run: FakeRun, name: str, **args: Any) -> str:
    with pytest.raises(AnsibleActionFail) as failed:
        run.act(name, **args)
    return str(failed.value.message)


def test_facts_carry_the_controllers_clock() -> None:
    run = FakeRun(modules={"spark_facts": {"facts": {"hostname": "x"}}})
    facts = run.act("spark_facts", fabric=True)["facts"]
    assert run.calls == [("spark_facts", {"fabric": True})]
    assert facts["controller_time"]["before"] <= facts["controller_time"]["after"]


def test_failed_facts_keep_their_message() -> None:
    run = FakeRun(modules={"spark_facts": {"failed": True, "msg": "no python"}})
    assert run.act("spark_facts") == {"changed": False, "failed": True, "msg": "no python"}


def test_ollama_unloads_before_the_facts_are_read_only_on_request() -> None:
    modules = {"spark_facts": {"facts": {}, "changed": False}, "spark_ollama": {"models": ["a"], "changed": True}}
    run = FakeRun(modules=modules)
    assert [run.act("spark_facts", unload_s=seconds)["changed"] for seconds in (60, 0)] == [True, False]
    assert run.calls == [("spark_ollama", {"deadline_s": 60}), ("spark_facts", {}), ("spark_facts", {})]


LOCK = {"state": "taken", "verb": "deploy", "folder": "/run/x", "break_lock": False}


def test_a_free_lock_is_taken() -> None:
    run = FakeRun(modules={"spark_lock_file": {"done": True, "holder": None}})
    assert run.act("spark_lock", **LOCK) == {"changed": False, "taken": True}
    ((_, args),) = run.calls
    assert (args["state"], args["over"], args["folder"], args["holder"]["verb"]) == ("taken", None, "/run/x", "deploy")


def test_a_lock_of_another_machine_refuses() -> None:
    run = FakeRun(modules={"spark_lock_file": {"done": False, "holder": HOLDER}})
    message = fails(run, "spark_lock", **LOCK)
    assert "ben@laptop" in message
    assert "docs/runbooks/operator-lock.md" in message
    assert len(run.calls) == 1


def test_a_lock_is_taken_over_as_the_operator_demands() -> None:
    run = FakeRun(modules={"spark_lock_file": lambda args: {"done": args["over"] == "r", "holder": HOLDER}})
    assert run.act("spark_lock", **LOCK | {"break_lock": True})["taken"]
    assert [args["over"] for _, args in run.calls] == [None, "r"]
    assert run.lines[0].startswith("spark1  ")


def test_a_lock_that_another_run_took_over_is_reported_on_release() -> None:
    run = FakeRun(modules={"spark_lock_file": {"done": False, "holder": HOLDER}})
    assert run.act("spark_lock", state="given", folder="/run/x") == {"changed": False, "taken": False}
    assert "ben@laptop" in run.lines[0]


def test_a_lock_module_that_fails_fails_the_task() -> None:
    run = FakeRun(modules={"spark_lock_file": {"failed": True, "msg": "read-only"}})
    assert fails(run, "spark_lock", **LOCK) == "read-only"


def test_an_idle_host_has_no_spec() -> None:
    result = FakeRun().act("vllm_spec", **inventory({**DEPLOYMENT, "hosts": ["spark2"]}))
    assert result == {"changed": False, "spec": None, "questions": None, "turn": []}


def test_a_variable_that_nothing_reads_is_named_once() -> None:
    """The misspelt variable of the group is named by its first host, and that of one host by this host."""
    hostvars: dict[str, dict[str, Any]] = {
        "spark1": {"vllm_secret": {}, "vllm_secrets": {}, "vllm_plan_box": {}, "ansible_user": "nvidia"},
        "spark2": {"vllm_secret": {}, "vllm_fabrik": {}},
    }
    printed = []
    for host in ("spark1", "spark2"):
        run = FakeRun(host=host, hostvars=hostvars)
        run.act("vllm_spec", **inventory(PAIR, host=host))
        printed += run.lines
    assert printed == [
        "spark1  warning unknown-variable: vllm_secret is set, and nothing reads it. "
        "Fix: rename it to vllm_secrets, or delete it.",
        "spark2  warning unknown-variable: vllm_fabrik is set, and nothing reads it. "
        "Fix: rename it to vllm_fabric, or delete it.",
    ]


def test_a_name_that_resembles_none_has_no_suggestion() -> None:
    (line,) = variables.warnings(["vllm_xyzzy", "other_prefix"], variables.known())
    assert line.endswith("delete it, or rename it without vllm_.")


def test_no_variable_of_the_shipped_inventories_is_unknown() -> None:
    files = [*(paths.ROOT / "inventories").rglob("vllm.yml"), *(paths.ROOT / "inventories").rglob("hosts.yml")]
    used = {name for file in files for name in re.findall(r"^ *(vllm_\w+):", file.read_text(), re.MULTILINE)}
    assert {"vllm_deployments", "vllm_secrets"} <= used
    assert list(variables.warnings(used, variables.known())) == []


def test_a_spec_is_quiet_and_has_its_questions(spec: Spec) -> None:
    result = FakeRun().act("vllm_spec", **inventory(DEPLOYMENT))
    assert result["_ansible_verbose_override"]
    assert result["questions"] == asked(spec)


def test_a_plan_has_its_files(planned: Vars) -> None:
    run = FakeRun(hostvars=planned)
    result = run.act("vllm_plan")
    assert "/etc/vllm-spark/demo/launch" in {file["path"] for file in result["plan"]["files"]}
    assert (result["findings"], result["around"]) == ([], False)
    assert run.act("vllm_plan", notification={"url": "https://ntfy.example/topic"})["around"]
    assert all(line.startswith("spark1  ") for line in run.lines)


def test_a_plan_refuses_after_its_findings(planned: Vars) -> None:
    facts = planned["spark1"]["spark_precheck_box"]["facts"]
    planned["spark1"]["spark_precheck_box"] = {"facts": facts | {"machine": "x86_64"}}
    assert "x86_64" in fails(FakeRun(hostvars=planned), "vllm_plan")


def test_an_idle_plan_stops_what_runs(facts: dict[str, Any]) -> None:
    unit = "vllm@old.service"
    facts |= {"units": {unit: {}}, "running_units": [unit]}
    registered = {"spark_precheck_resolved": {"spec": None}}
    registered |= {name: {"facts": facts} for name in ("spark_precheck_box", "vllm_plan_box")}
    run = FakeRun(hostvars={"spark1": registered}, hosts=["spark1"])
    idle = run.act("vllm_plan")["plan"]
    assert (idle["has_rank"], idle["stop_units"], idle["gates"], idle["acts"]) == (False, [unit], {}, True)
    assert not run.act("vllm_forecast", **forecast_args())["changed"]
    assert run.lines[0] == run.lines[1] == f"spark1  {unit} would be stopped: no deployment is active here"


def forecast_args(**more: Any) -> dict[str, Any]:
    folders = [str(folder) for folder in RECIPE_FOLDERS]
    load = {"context": 0, "streams": 0, "min_speed": 0, "roofline": {}, "bench_folder": "/nonexistent"}
    return {
        **load,
        "timing_folder": "/nonexistent",
        "former_constants": "/nonexistent/constants.yml",
        "recipe_folders": folders,
        "ask": False,
        "short": False,
        **more,
    }


def refused_plan(run: FakeRun, **more: Any) -> str:
    """Return the message of a plan that ends with refusals, after its forecasts."""
    reported = run.act("vllm_forecast", **forecast_args(**more))
    for own in run.hostvars.values():
        own["vllm_plan_reported"] = reported
    return fails(run, "vllm_plan_verdict")


def test_a_file_of_constants_is_named_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "constants.yml"
    file.write_text("schema: 7")
    run = FakeRun(hosts=[])
    run.act("vllm_forecast", **forecast_args(former_constants=str(file)))
    assert run.lines[0] == removed.CONSTANTS.format(file=file)
    assert file.read_text() == "schema: 7"


def many(planned: Vars, number: int) -> tuple[list[str], Vars]:
    """Return so many hosts, each with a deployment of its own, and their variables."""
    hosts, texts = [f"spark{index}" for index in range(1, number + 1)], json.dumps(planned["spark1"])
    replaced = {host: texts.replace('"spark1"', f'"{host}"').replace('"demo"', f'"on-{host}"') for host in hosts}
    return hosts, {host: json.loads(text) for host, text in replaced.items()}


@pytest.fixture
def pair_planned(facts: dict[str, Any]) -> Vars:
    """The variables of both hosts of a pair, whose model is not downloaded yet."""
    result: Vars = {}
    for host in HOSTS:
        resolved = FakeRun().act("vllm_spec", **inventory(PAIR, host=host))
        requested = resolved["questions"]
        own = copy.deepcopy(facts) | {
            "paths": dict.fromkeys(requested["paths"], False),
            "checksums": dict.fromkeys(requested["checksums"], None),
            "weights": dict.fromkeys(requested["paths"], None),
            "disks": {"/hub": {"total": 10**13, "free": 10**13}},
            "fabric": reference_spark.fabric(host),
        }
        result[host] = {"spark_precheck_resolved": resolved, "vllm_plan_box": {"facts": own}}
    return result


def test_a_forecast_is_printed_once_at_the_head(pair_planned: Vars) -> None:
    run = FakeRun(hostvars=pair_planned)
    run.act("vllm_forecast", **forecast_args())
    # The recipe of the test names no architecture.
    (forecast,) = [line for line in run.lines if "pair on spark1+spark2: unknown" in line]
    assert forecast.startswith("spark1  ")
    assert any(line.startswith("spark2  two-sparks rank 1 of spark1: vllm@pair.service") for line in run.lines)


def test_a_refusal_of_a_worker_is_told_once_and_counted_at_the_head(pair_planned: Vars) -> None:
    pair_planned["spark2"]["vllm_plan_box"]["facts"]["machine"] = "x86_64"
    run = FakeRun(hostvars=pair_planned)
    message = refused_plan(run)
    assert message.startswith("spark2  is x86_64")
    assert message.count("x86_64") == 1
    assert any("no-go, 1 reason" in line for line in run.lines)


def test_the_refusals_of_all_turns_fail_the_plan_once(pair_planned: Vars) -> None:
    run = FakeRun(hostvars=pair_planned)
    run.act("vllm_forecast", **forecast_args())
    assert run.act("vllm_plan_verdict") == {"changed": False}
    pair_planned["spark2"]["vllm_plan_box"]["facts"]["machine"] = "x86_64"
    message = refused_plan(run)
    # The same refusal in the next turn, and a turn that is fine.
    again = run.act("vllm_forecast", **forecast_args())
    assert again["document"]["refusals"] == []
    pair_planned["spark2"]["vllm_plan_box"]["facts"]["machine"] = "aarch64"
    assert refused_plan(run) == message


def test_a_host_that_failed_before_is_a_reason_against_its_deployment_alone(pair_planned: Vars) -> None:
    pair_planned["spark2"].pop("vllm_plan_box")
    run = FakeRun(hostvars=pair_planned, hosts=["spark1"])
    message = refused_plan(run)
    assert message.startswith("spark1  needs a result of spark2, where an earlier task has failed")


def test_before_a_deploy_a_host_has_few_lines_unless_it_is_refused(pair_planned: Vars) -> None:
    run, whole = FakeRun(hostvars=pair_planned), FakeRun(hostvars=pair_planned)
    run.act("vllm_forecast", **forecast_args(short=True))
    whole.act("vllm_forecast", **forecast_args())
    assert len(run.lines) < len(whole.lines)
    assert sum("would be started" in line for line in run.lines) == 2
    assert any(line.startswith("spark1  pair, rank 0: unknown, ") for line in run.lines)
    pair_planned["spark2"]["vllm_plan_box"]["facts"]["machine"] = "x86_64"
    refused = FakeRun(hostvars=pair_planned)
    refused_plan(refused, short=True)
    assert any("no-go, 1 reason" in line for line in refused.lines)


def test_before_a_deploy_a_host_that_stays_as_it_is_has_one_line(spec: Spec) -> None:
    stays, stops = Plan(), Plan(settled=False, stop_units=["vllm@old.service"])
    lines = [
        "demo on port 8000: it stays",
        "clients reach it",
        "vllm@old.service would be stopped: demo takes its place",
    ]
    assert preview_table.short("spark1", {"spark1": Preview(lines, [], spec, stays)}) == lines[:1]
    assert preview_table.short("spark1", {"spark1": Preview(lines, [], spec, stops)})[:2] == [lines[0], lines[2]]
    # A host without a deployment has nothing else.
    assert preview_table.short("spark1", {"spark1": Preview(lines, [])}) == lines


def test_many_hosts_are_one_table(planned: Vars) -> None:
    hosts, hostvars = many(planned, 20)
    run = FakeRun(host="spark1", hostvars=hostvars, hosts=hosts)
    run.act("vllm_forecast", **forecast_args())
    printed = "\n".join(run.lines).splitlines()
    assert [sum(host in line.split() for line in printed if "│" in line) for host in hosts] == [1] * 20
    assert len(printed) - 20 < 20
    assert printed[-1].startswith("20 hosts: 20 would be started. -v shows")
    assert any("(the same on spark2, spark3, spark4, spark5 and 15 more)" in line for line in printed)
    detailed = FakeRun(host="spark1", hostvars=hostvars, hosts=hosts, verbosity=1)
    detailed.act("vllm_forecast", **forecast_args())
    assert [f"{host}  on-{host} on {host}: unknown" in detailed.lines for host in hosts] == [True] * 20


def test_one_refusal_of_many_hosts_is_told_once(planned: Vars) -> None:
    hosts, hostvars = many(planned, 20)
    for host in hosts[4:]:
        hostvars[host]["vllm_plan_box"]["facts"]["machine"] = "x86_64"
    run = FakeRun(host="spark1", hostvars=hostvars, hosts=hosts)
    message = refused_plan(run)
    assert message.startswith("spark5  is x86_64")
    assert message.endswith("(the same on spark6, spark7, spark8, spark9 and 11 more)")
    assert message.count("\n") == 0
    assert (
        "4 would be started; 16 would refuse; no-go: on-spark5, on-spark6, on-spark7, on-spark8 and 12 more"
        in run.lines[-1]
    )


def test_a_wrong_constant_of_the_site_is_refused(pair_planned: Vars) -> None:
    args = forecast_args(roofline={"speed_of_light": 1})
    message = fails(FakeRun(hostvars=pair_planned), "vllm_forecast", **args)
    assert message.startswith("vllm_roofline: unknown speed_of_light — expected: ")
    run = FakeRun(hostvars=pair_planned)
    run.act("vllm_forecast", **forecast_args(roofline={"step_s": 1e-3}))
    assert run.lines[0].startswith("vllm_roofline: step_s: read no more since release 0.1.0")


@pytest.fixture
def pair_pulled(pair_planned: Vars) -> Vars:
    """The variables of both hosts of a pair that has its image, and no server."""
    for host in HOSTS:
        own = pair_planned[host]
        image = Spec.from_json(own["spark_precheck_resolved"]["spec"]).image
        own["vllm_plan_box"]["facts"] |= {"images": {image: "sha256:1"}, "running_units": []}
        own["__spark_fabric_box"] = own["vllm_plan_box"]
    return pair_planned


TIMED = '{"all_reduce": {"backend": "nccl", "ranks": 2, "calls": [[16384, 41.6384], [67108864, 6750.8864]]}}\n'


def test_the_all_reduces_of_a_pair_are_timed_in_the_image_of_its_server_and_count(
    pair_pulled: Vars, tmp_path: Path
) -> None:
    done: Vars = {"ansible.builtin.command": {"rc": 0, "stdout": TIMED, "stderr": ""}}
    head, worker = (FakeRun(host=host, hostvars=pair_pulled, modules=done) for host in HOSTS)
    for run in (head, worker):
        run.act("vllm_all_reduce", folder=str(tmp_path / "fabric"))
    commands = [run.calls[0][1]["argv"] for run in (head, worker)]
    address = reference_spark.fabric("spark1")["netdevs"][0]["addresses"][0]["address"]
    assert [argv[-4:] for argv in commands] == [[str(rank), "2", address, "25050"] for rank in (0, 1)]
    assert all(argv[:4] == ["timeout", "240", "docker", "run"] for argv in commands)
    assert all("NCCL_IB_DISABLE=0" in argv and "/dev/infiniband" in argv for argv in commands)
    # Neither files of the engine nor its secrets, whose folder may not exist yet.
    assert not {"--mount", "--env-file", "--name"} & set(commands[0])
    assert (len(head.lines), worker.lines) == (2, [])
    assert head.lines[0].startswith("spark1  all-reduce over spark1+spark2 by nccl: 16 KiB in 42 µs")
    plan = FakeRun(hostvars=pair_pulled)
    plan.act("vllm_forecast", **forecast_args(timing_folder=str(tmp_path / "fabric")))
    assert any("all-reduces as timed here: 34 µs and 10.2 GB/s" in line for line in plan.lines)
    bare = FakeRun(hostvars=pair_pulled)
    bare.act("vllm_forecast", **forecast_args())
    assert not any("as timed here" in line for line in bare.lines)


def test_all_reduces_are_not_timed_beside_a_server_without_an_image_or_where_a_rank_fails(pair_pulled: Vars) -> None:
    failed: Vars = {"ansible.builtin.command": {"rc": 1, "failed": True, "stdout": "", "stderr": "x\nno route\n"}}
    run = FakeRun(hostvars=pair_pulled, modules=failed)
    assert "spark1: no all-reduce was timed: no route" in fails(run, "vllm_all_reduce", folder="/nonexistent")
    facts = pair_pulled["spark2"]["__spark_fabric_box"]["facts"]
    facts |= {"running_units": ["vllm@old.service"], "images": {}}
    run = FakeRun(hostvars=pair_pulled)
    message = fails(run, "vllm_all_reduce", folder="/nonexistent")
    assert "spark2: vllm@old.service has the GPU and its memory" in message
    assert "ansible-playbook pull.yml -l spark1,spark2" in message
    assert run.calls == []


TWINS = ("enp1s0f1np1", "enP2p1s0f1np1")
FABRICS: Vars = {
    host: {
        "vllm_fabric": {"peer": HOSTS[1 - n], "addresses": {t: f"192.168.17{i}.1{n}/24" for i, t in enumerate(TWINS)}}
    }
    for n, host in enumerate(HOSTS)
}
LINK = {"host": "spark1", "sparks": HOSTS, "limit": HOSTS}


def test_the_link_is_checked_in_the_inventory() -> None:
    assert FakeRun(hostvars=FABRICS).act("vllm_fabric_link", phase="check", **LINK) == {"changed": False}
    alone = {"spark1": FABRICS["spark1"]}
    assert "vllm_fabric" in fails(FakeRun(hostvars=alone), "vllm_fabric_link", phase="check", **LINK)


def test_the_link_is_planned_and_judged() -> None:
    facts = {"addresses": [], "mtu": 1500, "carrier": True, "wireless": False}
    netdevs = {name: {"name": name, **facts} for name in TWINS}
    hcas = [{"netdev": name} for name in TWINS]
    fabric = {"netdevs": list(netdevs.values()), "hcas": hcas, "default_route": "eth0", "error": ""}
    netplan = {"netplan": "/usr/sbin/netplan", "reached_by": "eth0", "files": []}
    run = FakeRun(hostvars=FABRICS)
    result = run.act("vllm_fabric_link", phase="plan", fabric=fabric, netplan=netplan, replace=False, **LINK)
    link, netdevs = result["plan"], {name: {**netdev, "mtu": 9000} for name, netdev in netdevs.items()}
    pings = [{**ping, "rc": 0, "said": "0% packet loss"} for ping in link["pings"]]
    assert run.act("vllm_fabric_link", phase="pinged", plan=link, pings=pings, netdevs=netdevs) == {"changed": False}
    assert run.lines[0].startswith("spark1  ✓ ")
    pings = [{**ping, "rc": 1} for ping in pings]
    assert " Fix: " in fails(run, "vllm_fabric_link", phase="pinged", plan=link, pings=pings, netdevs=netdevs)


def test_a_host_that_is_not_reached_after_the_change_is_refused() -> None:
    args = {"phase": "reached", "host": "spark1", "guard_s": 60}
    assert FakeRun().act("vllm_fabric_link", **args, lost="") == {"changed": False}
    assert "timed out" in fails(FakeRun(), "vllm_fabric_link", **args, lost="timed out")


def test_a_change_that_breaks_its_connection_is_a_result() -> None:
    """An unreachable host ends a play with any_errors_fatal, before the tasks that say what happens next."""

    def breaks(_: object) -> dict[str, Any]:
        raise AnsibleConnectionFailure("Timeout, server 192.0.2.1 not responding.")

    for state in ("present", "absent"):
        result = FakeRun(modules={"spark_netplan": breaks}).act("spark_netplan", state=state)
        assert result["changed"]
        assert "not responding" in result["lost"]
    with pytest.raises(AnsibleConnectionFailure):
        FakeRun(modules={"spark_netplan": breaks}).act("spark_netplan", state="kept")
    answers = FakeRun(modules={"spark_netplan": {"changed": False, "confirm": False}})
    assert answers.act("spark_netplan", state="absent") == {"changed": False, "confirm": False, "lost": ""}


def test_judged_gates_are_recorded() -> None:
    run = FakeRun(modules={"vllm_history_file": {"changed": True, "entries": []}})
    args = {"folder": "/etc/vllm-spark/demo", "deployment": "demo"}
    assert run.act("vllm_history", phase="record", verb="deploy", judged={"holds": True}, **args)["changed"]
    ((_, sent),) = run.calls
    assert sent.keys() == {"entry", *args}
    assert (sent["entry"]["verb"], sent["entry"]["holds"]) == ("deploy", True)


def test_the_history_of_all_hosts_is_one_table() -> None:
    run = FakeRun(modules={"vllm_history_file": {"changed": False, "entries": []}})
    assert run.act("vllm_history", phase="read", deployment="demo", last=5) == {"changed": False, "entries": []}
    assert run.calls == [("vllm_history_file", {"deployment": "demo", "last": 5})]
    entries = [{"time": "2026-01-01T00:00:00Z", "deployment": "demo"}]
    run.hostvars = {host: {"vllm_history_read": {"entries": entries}} for host in HOSTS}
    run.act("vllm_history", phase="table", json_file="", last=20)
    assert all(host in run.lines[-1] for host in HOSTS)
    run.act("vllm_history", phase="table", json_file="", last=1)
    assert [host in run.lines[-1] for host in HOSTS] == [False, True]


def test_the_history_is_written_to_a_file(tmp_path: Path) -> None:
    entries = [{"time": "2026-01-01T00:00:00Z", "deployment": "demo"}]
    run = FakeRun(hostvars={host: {"vllm_history_read": {"entries": entries}} for host in HOSTS})
    file = tmp_path / "history.json"
    run.act("vllm_history", phase="table", json_file=str(file), last=20)
    assert json.loads(file.read_text()) == [{"host": host, **entries[0]} for host in HOSTS]
    assert "spark2" in run.lines[-1]


def test_a_switch_is_chosen_and_ordered() -> None:
    chosen = FakeRun().act(
        "vllm_switch", phase="choose", to="demo",
        deployments=[{**DEPLOYMENT, "name": "old"}, {**DEPLOYMENT, "active": False}],
        limit=HOSTS,
    )  # fmt: skip
    assert (chosen["hosts"], [entry["active"] for entry in chosen["deployments"]]) == (["spark1"], [False, True])
    hostvars: Vars = {
        "spark1": {
            "spark_precheck_planned": {"plan": Plan(stop_units=["vllm@old.service"]).to_json()},
            "spark_precheck_box": {"facts": {"running_units": ["vllm@old.service", "vllm@other.service"]}},
        },
        "spark2": {
            "spark_precheck_planned": {"plan": Plan(has_rank=False).to_json()},
            "spark_precheck_box": {"facts": {"running_units": []}},
        },
    }
    args = {"phase": "order", "deployments": chosen["deployments"], "limit": HOSTS}
    result = FakeRun(hostvars=hostvars).act("vllm_switch", **args)
    names = {"stop": ["old"], "running": ["old"], "others": ["other"], "old": "old"}
    assert result == {"changed": False, "involved": True, "starts": True, **names}
    assert not FakeRun("spark2", hostvars).act("vllm_switch", **args)["involved"]
    assert "old" in fails(FakeRun(hostvars=hostvars), "vllm_switch", **args | {"limit": ["spark2"]})


def test_a_rollback_without_a_deployment_is_refused() -> None:
    state = {"deployments": {}, "units": {}}
    hostvars = {host: {"vllm_rollback_box": {"holdings": state}} for host in HOSTS}
    message = fails(FakeRun(hostvars=hostvars), "vllm_rollback", phase="choose", deployment="", secrets={})
    assert "docs/runbooks/rollback-refused.md" in message


def test_a_rollback_target_is_printed_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target = SimpleNamespace(line=lambda: "demo returns", to_json=lambda: {"to": "a"})
    monkeypatch.setattr(
        rollback_target,
        "targets",
        lambda installed, name, secrets: {"spark1": target} if (name, [*secrets.values()]) == ("demo", [["A"]]) else {},
    )
    hostvars = {host: {"vllm_rollback_box": {"holdings": {}}} for host in HOSTS}
    head, other = (FakeRun(host=host, hostvars=hostvars) for host in HOSTS)
    result = head.act("vllm_rollback", phase="choose", deployment="demo", secrets={"A": "x", "B": ""})
    assert (result["target"], result["hosts"], head.lines) == ({"to": "a"}, ["spark1"], ["spark1  demo returns"])
    result = other.act("vllm_rollback", phase="choose", deployment="demo", secrets={"A": "x", "B": ""})
    assert (result["target"], result["hosts"], other.lines) == ({}, ["spark1"], [])


LOCK_VERB = {
    "deployments": [], "limit": HOSTS, "recipes": [], "recipe_folders": [], "accepted": [], "verify": False,
    "open_only": False, "registries": {}, "second_registries": {}, "token": "", "hub_environment": {"HF_ENDPOINT": "x"},
}  # fmt: skip


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_lock_file_is_written_if_it_changes(
    check_mode: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = {"before": "", "after": "images: {}\n", "lines": ["pinned"]}
    monkeypatch.setattr(own_process, "run", lambda module, *_: done if module == "vllm_spark.pinning.lock_verb" else {})
    file = tmp_path / "lock.yml"
    run = FakeRun(check_mode=check_mode)
    result = run.act("vllm_lock", lock_file=str(file), **LOCK_VERB)
    assert (result["changed"], result["diff"]["after"], run.lines) == (True, "images: {}\n", ["pinned"])
    assert file.exists() is not check_mode


@pytest.mark.parametrize(("way", "on_spark"), [("local", True), ("ansible.builtin.local", True), ("ssh", False)])
def test_lock_on_a_spark_has_the_hub_of_the_inventory(
    way: str, on_spark: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop has the hub of its shell: that of the inventory may be one that only the Sparks reach."""
    given: list[object] = []
    done = {"before": "", "after": "", "lines": []}
    monkeypatch.setattr(own_process, "run", lambda *args: given.append(args[3]) or done)
    run = FakeRun(hostvars={"spark1": {}, "spark2": {"ansible_connection": way}})
    run.act("vllm_lock", lock_file=str(tmp_path / "lock.yml"), **LOCK_VERB)
    assert given == [{"HF_ENDPOINT": "x"} if on_spark else {}]


def test_a_lock_without_recipes_is_refused(tmp_path: Path) -> None:
    assert " Fix: " in fails(FakeRun(), "vllm_lock", lock_file=str(tmp_path / "lock.yml"), **LOCK_VERB)


def test_check_mode_names_the_parts_of_a_bundle(spec: Spec, tmp_path: Path) -> None:
    run = FakeRun(hostvars={"spark1": {"vllm_pull_wanted": {"specs": [spec.to_json()]}}}, check_mode=True)
    args = {"hosts": ["spark1"], "registries": {}, "token": "", "environment": {}, "signers": "x", "unsigned": True}
    result = run.act("vllm_pull_bundle", folder=str(tmp_path / "bundle"), **args)
    assert (result["changed"], result["written"]) == (True, True)
    assert "bundle_unsigned" in run.lines[0]
    assert "owner/Model" in run.lines[1]
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(("status", "stopped"), [(0, []), (255, [42])])
def test_a_bundle_is_forwarded_to_the_host(status: int, stopped: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    opened_server = {"port": 5001, "manifests": {"folder/commit": "abc"}}
    monkeypatch.setattr(bundle_server, "start", lambda *_: (42, opened_server))
    monkeypatch.setattr(bundle_server, "stop", ended.append)
    done = SimpleNamespace(returncode=status, stderr="no master\n")
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: done)
    run = FakeRun()
    if status:
        assert "no master" in fails(run, "vllm_pull_carry", folder="/bundle", token="")
    else:
        opened = run.act("vllm_pull_carry", folder="/bundle", token="")
        assert (opened["process"], opened["manifests"]) == (42, {"folder/commit": "abc"})
        assert opened["forward"] == "127.0.0.1:25094:127.0.0.1:5001"
        assert run.act("vllm_pull_carry", opened=opened) == {"changed": False}
        stopped = [42]
    assert ended == stopped


def test_a_bundle_is_served_at_the_port_of_the_tunnel_on_this_machine_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[Any, ...]] = []

    def start(*args: Any) -> tuple[int, Any]:
        if started:
            raise OSError("the server of the bundle ended with status 1")
        started.append(args)
        return 42, {"port": args[2], "manifests": {}}

    ended: list[int] = []
    monkeypatch.setattr(bundle_server, "start", start)
    monkeypatch.setattr(bundle_server, "stop", ended.append)
    monkeypatch.setattr(subprocess, "run", None)
    run = FakeRun(hostvars={"spark1": {"ansible_connection": "local"}})
    opened = run.act("vllm_pull_carry", folder=str(tmp_path), token="")
    assert started == [(tmp_path, "", 25094)]
    assert run.act("vllm_pull_carry", opened=opened) == {"changed": False}
    assert ended == [42]
    assert "port 25094 of this machine is taken" in fails(run, "vllm_pull_carry", folder=str(tmp_path), token="")


def test_a_pull_is_resolved_for_a_host(spec: Spec) -> None:
    args = {"phase": "resolve", "named": []}
    result = FakeRun().act("vllm_pull_plan", **args, **inventory(DEPLOYMENT))
    assert result["specs"] == [spec.to_json()]
    assert result["look"]["hub"] == "/hub"
    result = FakeRun().act("vllm_pull_plan", **args, **inventory(DEPLOYMENT, host="spark2"))
    assert (result["specs"], result["questions"], result["look"]) == ([], {}, {})


def test_a_pull_is_planned_and_proven(spec: Spec, good: dict[str, Any]) -> None:
    wanted = FakeRun().act("vllm_pull_plan", phase="resolve", named=[], **inventory(DEPLOYMENT))
    sources = wanted["look"]["sources"]
    looks = [
        {**source, "manifest": True, "sha256": "", "missing": 0, "unread": 0, "wrong": [], "error": ""}
        for source in sources
    ]
    facts = good | {
        "images": dict.fromkeys(wanted["questions"]["images"], "sha256:1"),
        "disks": {"/hub": {"total": 10**13, "free": 10**13}},
        "fabric": reference_spark.fabric("spark1"),
    }
    variables = {"vllm_pull_wanted": wanted, "vllm_pull_looked": {"looks": looks}, "vllm_pull_box": {"facts": facts}}
    run = FakeRun(hostvars={"spark1": variables})
    result = run.act("vllm_pull_plan", phase="plan", hosts=["spark1"], bundled=False)
    assert (result["steps"]["images"]["pulls"], result["steps"]["hub_fetch"]) == ([], {})
    assert run.lines == ["spark1  everything is here"]
    assert run.act("vllm_pull_plan", phase="prove", hosts=["spark1"])["steps"] == {}
    assert run.lines[1].endswith(" is whole")


JOB = {"job": "check", "request": {"hub": "/hub"}}


def job_module(result: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda args: {"result": result} if args["action"] == "watch" else {"changed": True}


def test_a_job_is_started_watched_and_ended() -> None:
    run = FakeRun(modules={"spark_host_job": job_module({"ok": True, "bad": {"folder": ["file"]}})})
    result = run.act("vllm_pull_job", **JOB)
    assert (result["changed"], result["result"]["ok"]) == (True, True)
    assert [args["action"] for _, args in run.calls] == ["start", "watch", "stop"]
    assert run.calls[0][1]["argv"][-3:] == ["check", "hub_cache", "check_models"]
    assert run.calls[0][1]["job"] == "check"
    assert run.lines[0].startswith("spark1  folder: ")


def test_a_minute_of_a_job_is_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(1000))

    def module(args: dict[str, Any]) -> dict[str, Any]:
        second = next(seconds) if args["action"] == "watch" else 0
        return {"progress": {"phase": "unpacking", "seconds": second}} if second < 60 else {"result": {"ok": True}}

    clock = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("time.sleep", lambda _: None)
    run = FakeRun(modules={"spark_host_job": module})
    run.act("vllm_pull_job", job="image", request={})
    assert run.lines == [f"spark1  unpacking  00:{second:02d}" for second in (5, 10, 20, 40)]
    assert run.calls[0][1]["joins"]


def test_a_job_that_fails_is_a_refusal() -> None:
    run = FakeRun(modules={"spark_host_job": job_module({"ok": False, "detail": "disk full"})})
    assert "disk full" in fails(run, "vllm_pull_job", **JOB)
    run = FakeRun(modules={"spark_host_job": {"failed": True, "msg": "no python"}})
    assert "no python" in fails(run, "vllm_pull_job", **JOB)


def test_a_job_that_serves_is_watched_until_its_port_is_open_and_a_check_starts_none() -> None:
    serving = {"result": {}, "progress": {"phase": "serving", "manifests": {"folder/commit": "abc"}}}
    run = FakeRun(modules={"spark_host_job": lambda args: serving if args["action"] == "watch" else {"changed": True}})
    assert run.act("vllm_pull_job", **JOB, wait=False)["result"] == {"manifests": {"folder/commit": "abc"}}
    assert run.act("vllm_pull_job", job="check", stop=True)["changed"]
    assert [args["action"] for _, args in run.calls] == ["start", "watch", "stop"]
    assert FakeRun(check_mode=True).act("vllm_pull_job", **JOB)["changed"]


def test_a_server_whose_port_is_taken_is_a_refusal_at_once() -> None:
    taken = {"ok": False, "reason": "port-taken", "detail": "Address already in use"}
    run = FakeRun(modules={"spark_host_job": job_module(taken)})
    text = fails(run, "vllm_pull_job", job="serve-files", request={}, wait=False)
    assert "Address already in use" in text
    assert "ss -ltnp" in text
    run = FakeRun(modules={"spark_host_job": lambda args: {"failed": args["action"] == "watch", "msg": "lost"}})
    assert "lost" in fails(run, "vllm_pull_job", job="serve-files", request={}, wait=False)


def test_a_receiver_gets_the_manifests_of_its_sender_and_keeps_those_of_the_lock_file() -> None:
    run = FakeRun(modules={"spark_host_job": job_module({"ok": True, "moved": 0})})
    sources = [{"folder": "a", "commit": "1"}, {"folder": "b", "commit": "2", "manifest": "locked"}]
    manifests = {"a/1": "reported", "b/2": "other"}
    run.act("vllm_pull_job", job="fetch-peer", request={"sources": sources}, manifests=manifests)
    assert [ref["manifest"] for ref in run.calls[0][1]["request"]["sources"]] == ["reported", "locked"]


WATCH = {
    "job": "1.2",
    "results_file": "/root/.ansible_async/1.2",
    "image": "vllm:1",
    "timeout_s": 60,
    "log": "/x/build.log",
}


def test_an_image_is_waited_for() -> None:
    run = FakeRun(
        modules={"ansible.builtin.async_status": {"finished": 1, "changed": True}}, output={"tail ": "step 1"}
    )
    assert run.act("vllm_image_watch", **WATCH)["changed"]
    assert run.calls == [("ansible.builtin.async_status", {"jid": "1.2", "_async_dir": "/root/.ansible_async"})]


def test_a_build_that_fails_fails_the_task() -> None:
    modules = {"ansible.builtin.async_status": {"failed": True, "msg": "no space"}}
    run = FakeRun(modules=dict(modules), output={"tail ": "vllm-spark refuses: step 3 broke"})
    assert "step 3 broke" in fails(run, "vllm_image_watch", **WATCH)


def test_prune_takes_nothing_from_an_empty_host() -> None:
    run = FakeRun(hostvars={"spark1": {"found": {"holdings": INSTALLED_NOTHING}}})
    assert run.act("vllm_removal_plan", registered="found")["items"] == []
    remove = {"deployment": "", "weights": False, "caches": False, "everything": True, "limited": True}
    assert run.act("vllm_removal_plan", registered="found", remove=remove, again=True)["items"] == []
    program = INSTALLED_NOTHING | {"programs": ["/usr/local/lib/vllm-spark"]}
    run = FakeRun(hostvars={"spark1": {"found": {"holdings": program}}}, check_mode=True)
    items = run.act("vllm_removal_plan", registered="found", remove=remove)["items"]
    assert "/usr/local/lib/vllm-spark" in {item["name"] for item in items}
    assert any("would remove" in line for line in run.lines)
    assert "/usr/local/lib/vllm-spark" in fails(run, "vllm_removal_plan", registered="found", remove=remove, again=True)


INSTALLED_NOTHING: dict[str, Any] = {
    "deployments": {}, "history": {}, "pulled": [], "units": {}, "unit_files": [], "unit_files_of_others": [],
    "docker": {"error": "", "images": [], "containers": []}, "programs": [], "run": [], "config": "",
    "state": [], "builds": [], "models": [], "caches": [], "shared_blobs": [], "accounts": [], "packages": [],
    "pull_was_cut_off": False, "paths": {},
}  # fmt: skip


def test_a_status_shows_hosts_that_did_not_answer(spec: Spec, tmp_path: Path) -> None:
    hostvars: Vars = {
        "spark1": {
            "spark_precheck_resolved": {"spec": spec.to_json()},
            "vllm_status_box": {"msg": "Task failed: no route\nto host"},
        }
    }
    run = FakeRun(hostvars=hostvars)
    file = tmp_path / "status.json"
    with pytest.raises(UnreachableError) as failed:
        run.act("vllm_status", json_file=str(file))
    document = failed.value.fields["document"]
    assert json.loads(file.read_text()) == document
    hosts = document["hosts"]
    assert "no route to host" in " ".join(run.lines[0].replace("│", " ").split())
    assert [host["problem"] for host in hosts] == ["no route to host", "it was not asked"]


def test_bundles_of_a_pair_are_named_together() -> None:
    done = {"bundle": "reports/x.tar.gz", "deployments": {"pair": "active (running)"}}
    run = FakeRun(hostvars={"spark1": {"vllm_collect_done": {**done}}, "spark2": {"vllm_collect_done": {"msg": "?"}}})
    lines = run.act("vllm_collect", phase="pairs", deployments=[PAIR])["lines"]
    assert lines
    assert run.lines == lines


def test_logs_are_collected_into_a_bundle(tmp_path: Path) -> None:
    run = FakeRun(modules={"vllm_collect_logs": {"failed": True, "msg": "no journal"}})
    assert fails(run, "vllm_collect", phase="host", report_dir=str(tmp_path)) == "no journal"
    run = FakeRun(modules={"vllm_collect_logs": {"collected": "not packed"}})
    assert "unpacked" in fails(run, "vllm_collect", phase="host", report_dir=str(tmp_path))


def verify_args(spec: Spec, folder: Path, **more: Any) -> dict[str, Any]:
    request = runner.gate_request(replace(spec, rank=1), launch.fingerprint(spec)).to_json()
    base = {"gates": request, "env_path": "/etc/vllm-spark/demo/env", "reason": "first deploy", "wait": True}
    return {**base, "report_dir": str(folder), **more}


def worker_probe(request: dict[str, Any], **container: Any) -> dict[str, Any]:
    """The probe of a worker that runs as planned."""
    labels = {"vllm-spark.launch": request["launch"]}
    return {
        "unit": {"ActiveState": "active", "NRestarts": "0"},
        "running_s": 12.34,
        "lines": [],
        "cursor": "c1",
        "responses": {},
        "state": {"state": "serving"},
        "container": {"state": "running", "image": request["image"], "labels": labels, **container},
    }


def test_a_rank_is_verified_and_reported(spec: Spec, tmp_path: Path) -> None:
    args = verify_args(spec, tmp_path)
    run = FakeRun(modules={"vllm_probe": {"probe": worker_probe(args["gates"])}})
    result = run.act("vllm_verify", phase="gates", **args)
    assert (result["holds"], result["missed"], result["running_s"]) == (True, "", 12.3)
    assert json.loads(Path(result["report"]).read_text())["deployed_because"] == "first deploy"
    ((_, sent),) = run.calls
    assert {"unit", "container", "address", "port", "state_path", "env_path", "requests", "cursor"} == sent.keys()
    assert [line for line in run.lines if "✓" in line] == ["spark1  ✓ 1 gate passes: ready"]


def test_each_gate_has_its_line_with_v(spec: Spec, tmp_path: Path) -> None:
    args = verify_args(spec, tmp_path)
    run = FakeRun(modules={"vllm_probe": {"probe": worker_probe(args["gates"])}}, verbosity=1)
    assert run.act("vllm_verify", phase="gates", **args)["holds"]
    assert [line.partition(":")[0] for line in run.lines if "✓" in line] == ["spark1  ✓ ready rank"]


def test_a_closed_engine_is_asked_on_its_socket(spec: Spec, tmp_path: Path) -> None:
    args = verify_args(replace(spec, edge=Edge(spec.host, EdgeSettings(open=False))), tmp_path)
    run = FakeRun(modules={"vllm_probe": {"probe": worker_probe(args["gates"])}})
    assert run.act("vllm_verify", phase="gates", **args, authority=str(tmp_path))["holds"]
    ((_, sent),) = run.calls
    assert sent["socket"] == "/run/vllm-spark/demo/api/api.sock"


def test_a_failed_gate_is_left_to_the_caller(spec: Spec, tmp_path: Path) -> None:
    args = verify_args(spec, tmp_path, wait=False)
    run = FakeRun(modules={"vllm_probe": {"probe": worker_probe(args["gates"], image="other")}})
    result = run.act("vllm_verify", phase="gates", **args)
    assert result["holds"] is False
    assert "other" in result["missed"]
    assert result["gates"]["missed"] == ["ready"]
    (gate,) = [gate for gate in json.loads(Path(result["report"]).read_text())["verdicts"] if gate["ok"] is False]
    assert gate["gate"] == "ready"
    assert str(gate["fix"]) in result["missed"]


def test_a_verification_fails_with_the_first_cause_of_the_deployment() -> None:
    lost = {"holds": False, "missed": "spark2 is lost", "remoteness": 2}
    judged = {"spark1": lost, "spark2": {"holds": False, "missed": "no memory", "remoteness": 0}}
    run = FakeRun(hostvars={host: {"vllm_verify_judged": result} for host, result in judged.items()})
    assert fails(run, "vllm_verify", phase="end", hosts=["spark1", "spark2"]) == "no memory"
    assert fails(run, "vllm_verify", phase="end", hosts=["spark1"]) == "spark2 is lost"
    held = FakeRun(hostvars={"spark1": {"vllm_verify_judged": {"holds": True, "missed": ""}}, "spark2": {}})
    assert held.act("vllm_verify", phase="end", hosts=["spark1", "spark2"]) == {"changed": False}


def test_a_verification_fails_if_one_rank_has_another_nccl() -> None:
    held = {"holds": True, "missed": ""}
    judged = {"spark1": {**held, "nccl": ["2.30.7"]}, "spark2": {**held, "nccl": ["2.29.7"]}}
    run = FakeRun(hostvars={host: {"vllm_verify_judged": result} for host, result in judged.items()})
    message = fails(run, "vllm_verify", phase="end", hosts=["spark1", "spark2"])
    assert message.startswith("the ranks have different versions of NCCL: spark1 2.30.7, spark2 2.29.7")


def test_a_start_that_fails_is_not_reported(spec: Spec, tmp_path: Path) -> None:
    args = verify_args(spec, tmp_path)
    probe = {**worker_probe(args["gates"], state="exited"), "unit": {"ActiveState": "failed"}}
    result = FakeRun(modules={"vllm_probe": {"probe": probe}}).act("vllm_verify", phase="gates", **args)
    assert result.keys() == {"changed", "holds", "missed", "nccl", "remoteness"}
    assert "docs/runbooks/engine-failed-to-start.md" in result["missed"]
