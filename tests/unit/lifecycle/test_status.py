"""Status: the document with its stable keys, the table, and the facts of a Spark that they need."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_status

import verb_documents
from fakes import edge_cases
from fakes.cases import merge, pair_of
from fakes.deployed_spark import deployed_facts
from fakes.recorded_hosts import HOSTS
from vllm_spark.core import json_output
from vllm_spark.deploy import ranks
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import reach, status, status_table
from vllm_spark.lifecycle.status import HostResult

SECRET = "hidden-value-of-a-test"


@pytest.fixture
def spec(resolve: Callable[..., Spec]) -> Spec:
    return resolve()


@pytest.fixture
def host_facts(spec: Spec, facts: dict[str, Any]) -> dict[str, Any]:
    return deployed_facts(spec, facts)


def shown(**hosts: HostResult) -> dict[str, Any]:
    result = status.document(hosts, "2026-01-02T03:04:05Z", "test")
    return verb_documents.judged(json_output.document("status", json.loads(json.dumps(result))))


def one(spec: Spec | None, host_facts: dict[str, Any], refused: bool = False) -> dict[str, Any]:
    intent = None if refused else HostIntent.of_rank(spec) if spec else HostIntent("spark1")
    return shown(spark1=HostResult(intent, host_facts))["hosts"][0]["deployments"][0]


def test_a_spark_that_serves_the_desired_state(spec: Spec, host_facts: dict[str, Any]) -> None:
    result = one(spec, host_facts)
    image = {"name": spec.image, "id": "sha256:3"}
    up = {"active": "active", "sub": "running", "enabled": True, "result": None, "up_s": 67, "restarts": 0}
    assert result == {
        **result,
        "name": "demo",
        "recipe": "everything",
        "rank": 0,
        "ranks": 1,
        "wanted": True,
        "state": "serving",
        "unit": up,
        "image": image,
        "model": host_facts["records"]["demo"]["model"],
        "drift": {"differs": False, "reasons": [], "launch_diff": []},
    }
    lines = status_table.table(shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts))).splitlines()
    assert max(map(len, lines)) <= status_table.TABLE_WIDTH
    (first,) = [line for line in lines if "spark1" in line]
    assert [cell.strip() for cell in first.split("│")[1:-1]] == [
        "spark1",
        "demo",
        "serving",
        "111111111111",
        "—",
        "OPEN: all,",
        "112.0/121.7 GiB",
        "none",
    ]


FULL = {
    "launch": "",
    "judged": {"time": "2026-01-01T10:20:30Z", "holds": True, "gates": {"held": ["ready"], "missed": []}},
    "liveness": {"ready": True, "misses": 1, "age_s": 7.4, "invocation": "x"},
    "history": [{"time": 1.7e9, "state": "loading", "why": ""}],
    "counters": [{"running": 2.0, "tokens": 100.0, "at": 10.0}, {"running": 2.0, "tokens": 131.0, "at": 11.0}],
}


def test_a_full_document_has_what_its_schema_has(spec: Spec, host_facts: dict[str, Any]) -> None:
    record = host_facts["records"]["demo"]
    failed = {"recipe": "r", "launch": "new", "previous": {"launch": record["launch"]}}
    launch = "docker run \\\n  --host 192.0.2.1 \\\n  --port 8000 \\\n"
    host_facts["status"]["deployments"]["demo"] = {**FULL, "failed": failed, "derived": {}, "launch": launch}
    host_facts["status"]["lock"] = {"user": "u", "controller": "c", "verb": "deploy", "age_s": 3.0}
    (host,) = shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts))["hosts"]
    (deployment,) = host["deployments"]
    assert [key for key in ("lock", "memory") if host[key] is None] == []
    assert [key for key in ("unit", "gates", "tokens", "liveness", "reach") if deployment[key] is None] == []


def test_every_host_has_the_same_keys(spec: Spec, host_facts: dict[str, Any]) -> None:
    gone = shown(spark1=HostResult(HostIntent.of_rank(spec), None, "no route to host"))["hosts"][0]
    there = shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts))["hosts"][0]
    assert gone.keys() == there.keys()
    assert gone["deployments"][0].keys() == there["deployments"][0].keys()


def rows(result: dict[str, Any]) -> str:
    return " ".join(status_table.table(result).replace("│", " ").split())


def test_a_host_that_does_not_answer_has_its_row(spec: Spec) -> None:
    text = status_table.table(
        shown(
            spark1=HostResult(HostIntent.of_rank(spec), None, "no route to host"),
            spark2=HostResult(None, problem="no sudo"),
        )
    )
    assert "spark1  does not answer: no route to host" in text
    assert "spark2  does not answer: no sudo" in text
    assert [line.split("│")[3].strip() for line in text.splitlines() if "spark" in line and "│" in line] == [
        "no answer"
    ] * 2


def test_a_host_without_docker_has_its_row(spec: Spec, host_facts: dict[str, Any]) -> None:
    host_facts["docker"] = {"version": "", "error": "no socket", "containers": {}}
    result = shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts))
    assert result["hosts"][0]["answers"]
    assert "no-docker" in result["hosts"][0]["deployments"][0]["drift"]["reasons"][0]
    assert "spark1  no Docker engine answers: no socket" in status_table.table(result)


def test_an_idle_spark_and_a_spark_without_a_deployment(facts: dict[str, Any]) -> None:
    facts["status"] = {"deployments": {}, "lock": None}
    text = rows(shown(spark1=HostResult(HostIntent("spark1"), facts)))
    assert "spark1 — idle" in text


def test_other_deployments_on_the_host_are_listed(spec: Spec, host_facts: dict[str, Any]) -> None:
    host_facts["status"]["deployments"]["old"] = {"launch": "# deployment  old (rank 1 of 2)\n", "counters": []}
    host_facts["records"]["old"] = {"recipe": "r-old", "rank": 1, "model": "o/m@abc", "launch": "1"}
    host_facts["units"]["vllm@old.service"] = {"ActiveState": "inactive", "SubState": "dead", "NRestarts": "0"}
    result = shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts))["hosts"][0]["deployments"]
    assert [(each["name"], each["wanted"], each["drift"]["differs"]) for each in result] == [
        ("demo", True, False),
        ("old", False, False),
    ]
    assert (result[1]["rank"], result[1]["ranks"], result[1]["state"]) == (1, 2, "inactive (dead)")
    host_facts["running_units"].append("vllm@stranger.service")
    result = shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts))["hosts"][0]["deployments"]
    assert [each["drift"]["reasons"] for each in result] == [
        ["deploy refuses: unknown-deployment"],
        ["it runs, and the inventory has it nowhere active"],
        [],
    ]


def test_a_refused_inventory_hides_nothing_that_runs(host_facts: dict[str, Any]) -> None:
    result = one(None, host_facts, refused="no such recipe")
    assert (result["name"], result["wanted"], result["state"]) == ("demo", None, "serving")
    assert result["drift"] == {"differs": None, "reasons": ["unknown: the inventory is refused"], "launch_diff": []}


def test_a_deploy_that_was_rolled_back(spec: Spec, host_facts: dict[str, Any]) -> None:
    note = "everything-new missed its gates and was taken back"
    requested = host_facts["records"]["demo"]["launch"]
    host_facts["records"]["demo"]["launch"] = "before"
    host_facts["launches"]["demo"]["deployed"] = "of the launch before"
    failed = {"recipe": "everything-new", "launch": requested, "previous": {"launch": "before"}}
    host_facts["status"]["deployments"]["demo"]["failed"] = failed
    assert one(spec, host_facts)["taken_back"]["recipe"] == "everything-new"
    assert note in status_table.table(shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts)))
    # The inventory requests another launch than the one that failed.
    host_facts["status"]["deployments"]["demo"]["failed"] = {**failed, "launch": "another"}
    assert one(spec, host_facts)["taken_back"] is None
    # A later launch runs, so the rollback is no longer reported.
    host_facts["status"]["deployments"]["demo"]["failed"] = {**failed, "previous": {"launch": "older"}}
    assert one(spec, host_facts)["taken_back"] is None


def test_a_deployment_that_is_no_longer_active_has_no_note(spec: Spec, host_facts: dict[str, Any]) -> None:
    failed = {"recipe": "r", "launch": host_facts["records"]["demo"]["launch"], "previous": {"launch": "before"}}
    host_facts["records"]["demo"]["launch"] = "before"
    host_facts["status"]["deployments"]["demo"]["failed"] = failed
    assert one(None, host_facts)["taken_back"] is None


@pytest.mark.parametrize(
    ("judged", "cell"),
    [
        ({"time": "2026-01-01T10:20:30Z", "holds": True, "gates": {"held": ["ready", "log"]}}, "✓ 2 held"),
        ({"time": "2026-01-01T10:20:30Z", "holds": False, "gates": {"missed": ["log", "answer"]}}, "✗ log, answer"),
    ],
)
def test_the_last_gates(judged: dict[str, Any], cell: str, spec: Spec, host_facts: dict[str, Any]) -> None:
    host_facts["status"]["deployments"]["demo"]["judged"] = {
        **judged,
        "launch": host_facts["records"]["demo"]["launch"],
    }
    text = rows(shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts)))
    assert cell in text
    assert "2026-01-01 10:20" in text
    assert "not judged" not in text
    host_facts["status"]["deployments"]["demo"]["judged"] |= {"launch": "older", "verb": "deploy"}
    assert one(spec, host_facts)["gates"]["this_launch"] is False
    other = rows(shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts)))
    assert cell not in other
    assert "not judged" in other
    assert "since deploy" in other


# A deploy whose launch failed and was taken away, then what a switch has left running.
HISTORY = [
    {"launch": "good", "time": "2026-01-01T10:00:00Z", "holds": True, "verb": "deploy"},
    {"launch": "bad", "time": "2026-01-02T10:00:00Z", "holds": False, "verb": "deploy"},
]


@pytest.mark.parametrize(
    ("launch", "time"), [("good", "2026-01-01T10:00:00Z"), ("bad", HISTORY[1]["time"]), ("new", HISTORY[1]["time"])]
)
def test_a_host_reports_the_gates_of_its_own_launch(launch: str, time: str, tmp_path: Path) -> None:
    folder, history = tmp_path / spark_status.CONFIG / "demo", tmp_path / spark_status.HISTORY
    for needed in (folder, history):
        needed.mkdir(parents=True)
    (folder / "deployed.json").write_text(json.dumps({"launch": launch}))
    (history / "demo.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in HISTORY) + '{"launch": "go')
    judged = spark_status.deployment("demo", str(tmp_path))["judged"]
    assert judged["time"] == time
    (history / "demo.jsonl").unlink()
    assert spark_status.deployment("demo", str(tmp_path))["judged"] is None


@pytest.mark.parametrize(
    ("looks", "expected", "cell"),
    [
        ([], None, "—"),
        ([{"running": 0.0, "at": 1.0}], {"running": 0, "waiting": 0, "now": None, "mean": None}, "idle"),
        (
            # Three requests of 11 tokens have ended, each ten tokens in two seconds after its first.
            [{"running": 0.0, "at": 1.0, "ended": 3.0, "ended_tokens": 33.0, "decode_s": 6.0}],
            {"running": 0, "waiting": 0, "now": None, "mean": 5.0},
            "idle, mean 5.0",
        ),
        (
            [
                {"running": 2.0, "tokens": 100.0, "at": 10.0},
                {"running": 2.0, "waiting": 1.0, "tokens": 147.0, "at": 11.5},
            ],
            {"running": 2, "waiting": 1, "now": 31.33, "mean": None},
            "31.3 tok/s",
        ),
        (  # The engine restarted in between.
            [{"running": 2.0, "tokens": 100.0, "at": 10.0}, {"running": 1.0, "tokens": 7.0, "at": 11.0}],
            {"running": 1, "waiting": 0, "now": None, "mean": None},
            "idle",
        ),
    ],
)
def test_tokens(
    looks: list[dict[str, float]], expected: dict[str, Any] | None, cell: str, spec: Spec, host_facts: dict[str, Any]
) -> None:
    host_facts["status"]["deployments"]["demo"]["counters"] = looks
    assert one(spec, host_facts)["tokens"] == expected
    assert cell in rows(shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts)))


def test_the_lock_holder_and_the_launch_difference_are_shown(spec: Spec, host_facts: dict[str, Any]) -> None:
    host_facts["status"]["lock"] = {"user": "ben", "controller": "laptop", "verb": "switch", "age_s": 67.0}
    host_facts["files"]["/etc/vllm-spark/demo/launch"] = ["0", "0755"]
    host_facts["status"]["deployments"]["demo"]["launch"] = "by hand\n"
    text = status_table.table(shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts)))
    assert "spark1  is held by ben@laptop with switch for 01:07; that run is of another machine" in text
    assert "spark1  demo  -by hand" in text


def test_a_lock_whose_run_has_ended_is_explained(spec: Spec, host_facts: dict[str, Any]) -> None:
    host_facts["status"]["lock"] = {
        "user": "ben",
        "controller": "desk",
        "verb": "deploy",
        "age_s": 3.0,
        "pid": 7,
        "connected": True,
    }
    result = shown(spark1=HostResult(HostIntent.of_rank(spec), host_facts, holder_lives=False))
    assert result["hosts"][0]["lock"] == {**host_facts["status"]["lock"], "age_s": 3, "alive": False}
    assert "with deploy for 00:03; that run has ended without giving it back, and the next one" in status_table.table(
        result
    )


def test_each_rank_of_a_pair_has_its_own_fields(facts: dict[str, Any], tmp_path: Path) -> None:
    specs, hosts = pair_of(facts, tmp_path)
    ranked = ranks.join(specs, hosts)
    hosts = {host: deployed_facts(ranked[host], copy.deepcopy(hosts[host])) for host in HOSTS}
    waits = {"state": "wanted", "why": "it waits for spark1", "peers": ["spark1"], "last_end": "it hung: no token"}
    merge(hosts["spark2"], {"docker": {"containers": {"vllm-pair": None}}, "states": {"pair": waits}})
    before = [{"time": 1.7e9 + at, "state": state, "why": ""} for at, state in enumerate(("serving", "failed"))]
    hosts["spark2"]["status"]["deployments"]["pair"]["history"] = [
        *before,
        {"time": 1.8e9, "state": "wanted", "why": ""},
    ]

    def documented() -> dict[str, Any]:
        return shown(**{host: HostResult(HostIntent.of_rank(specs[host]), hosts[host]) for host in HOSTS})

    result = [host["deployments"][0] for host in documented()["hosts"]]
    assert [(each["rank"], each["state"], each["drift"]["reasons"]) for each in result] == [
        (0, "serving", []),
        (1, "wanted", ["vllm@pair.service would be restarted: its ranks do not run together"]),
    ]
    assert [each["why"] for each in result] == ["", "it waits for spark1"]
    assert [each["last_end"] for each in result] == ["", "it hung: no token"]
    text = status_table.table(documented())
    assert "spark2  pair: wanted since 1970-01-01 00:16:40: it waits for spark1" in text
    assert "spark2  pair: before that: failed 2023-11-14 22:13:21, serving 2023-11-14 22:13:20" in text
    assert "pair, rank 0" in status_table.table(documented())
    merge(hosts["spark2"], {"states": {"pair": {"state": "gave up", "why": "5 failed starts in a row"}}})
    text = status_table.table(documented())
    assert "spark2  pair: gave up since 1970-01-01 00:16:40: 5 failed starts in a row" in text
    assert "`ansible-playbook deploy.yml -l spark1,spark2`. See docs/runbooks/gave-up.md" in text
    assert "its cause" not in text
    journal = [
        "INFO 01-02 03:04:05 start",
        "ValueError: There is no module or parameter named 'x.y' in Gemma3ForCausalLM",
    ]
    merge(hosts["spark2"], {"status": {"deployments": {"pair": {"journal": journal}}}})
    cause = documented()["hosts"][1]["deployments"][0]["cause"]
    assert (cause["signature"], cause["line"], cause["runbook"]) == (
        "checkpoint-unknown",
        journal[1],
        "engine-version.md",
    )
    text = status_table.table(documented())
    assert "spark2  pair: its cause: this version of vLLM does not know the part x.y of the checkpoint" in text
    assert "See docs/runbooks/engine-version.md" in text
    drift = documented()["hosts"][1]["deployments"][0]["drift"]
    assert drift["reasons"] == ["vllm@pair.service would be restarted: it gave up"]
    hosts["spark2"]["fabric"]["hcas"] = []
    result = [host["deployments"][0]["drift"]["reasons"] for host in documented()["hosts"]]
    assert result == [["deploy refuses: fabric-none"], ["deploy refuses: refused-with-head"]]


def test_files_of_a_host_are_read_without_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "etc/vllm-spark/demo"
    (folder / "failed").mkdir(parents=True)
    by_hand = "#!/bin/sh\nexec docker run --env HF_TOKEN=abcdefghijklmnop --label a=b image serve\n"
    (folder / "launch").write_text(by_hand + f"# {SECRET}\n")
    (folder / "env").write_text(f"VLLM_API_KEY={SECRET}\nOLD=1\n")
    (folder / "env").chmod(0o600)
    (folder / "failed/deployed.json").write_text('{"launch": "new"}')
    history = tmp_path / "var/lib/vllm-spark/history"
    history.mkdir(parents=True)
    (history / "demo.jsonl").write_text('{"holds": false}\n{"holds": true}\n{"holds": fal')
    result = spark_status.deployments(["demo"], str(tmp_path))["demo"]
    assert result["launch"].splitlines()[:2] == [
        "#!/bin/sh",
        "exec docker run --env HF_TOKEN=<masked> --label a=b image serve",
    ]
    assert SECRET not in json.dumps(result)
    assert (result["judged"], result["failed"], result["liveness"]) == ({"holds": True}, {"launch": "new"}, None)
    files = spark_status.files(["demo"], str(tmp_path))
    assert files["/etc/vllm-spark/demo/env"][1] == "0600"
    wanted = f"VLLM_API_KEY={SECRET}2\nHF_TOKEN=x\n"
    changes = spark_status.env_changes(str(folder / "env"), wanted)
    assert changes == {"added": ["HF_TOKEN"], "removed": ["OLD"], "changed": ["VLLM_API_KEY"], "same": False}
    same = spark_status.env_changes(str(folder / "env"), (folder / "env").read_text())
    assert same == {"added": [], "removed": [], "changed": [], "same": True}
    (folder / "env").chmod(0o644)
    assert spark_status.env_changes(str(folder / "env"), (folder / "env").read_text())["same"] is False


def test_status_shows_who_reaches_a_spark_that_forwards(host_facts: dict[str, Any]) -> None:
    active = {"ActiveState": "active"}
    edge = {
        "program": True,
        "unit": active,
        "route": active,
        "switch": {},
        "keys": ["ada"],
        "may_switch": [],
        "batch": [],
    }
    forwarding = edge_cases.intent_of([edge_cases.REPLICA, edge_cases.THIRD], {"open": False, "site": edge_cases.SITE})
    facts = {**host_facts, "edge": edge, "running_units": [], "ports": {}}
    facts["status"] = {**facts["status"], "deployments": {}}
    document = status.document({"spark1": HostResult(forwarding, facts)}, "now", "x")
    (host,) = document["hosts"]
    assert host["edge"]["forwards_to"] == ["spark2", "spark3"]
    assert reach.cell(host["edge"]) == "edge:\nada"
    cells = [cell.strip() for cell in status_table.table(document).splitlines()[3].strip("│").split("│")]
    assert cells[:6] == ["spark1", "—", "forwards", "—", "—", "edge:"]
    assert status.document({"spark1": HostResult(HostIntent("spark1"), facts)}, "now", "x")["hosts"][0]["edge"] is None


def test_each_deployment_of_a_shared_spark_has_its_own_turn(host_facts: dict[str, Any], spec: Spec) -> None:
    """Of the first turn `demo` is wanted, of the last one `other`, whose launch has changed."""
    other = replace(spec, deployment=replace(spec.deployment, name="other"))
    both = copy.deepcopy(host_facts)
    both["running_units"].append("vllm@other.service")
    both["units"]["vllm@other.service"] = both["units"]["vllm@demo.service"]
    both["status"]["deployments"]["other"] = both["status"]["deployments"]["demo"]
    results = [HostResult(HostIntent.of_rank(one), both) for one in (spec, other)]
    drifts = [status.document({"spark1": one}, "", "test")["hosts"][0]["deployments"] for one in results]
    document = status.document({"spark1": results[1]}, "", "test", {"spark1": [results[0]]})
    (host,) = document["hosts"]
    shown_ = {one["name"]: one for one in host["deployments"]}
    assert shown_.keys() == {"demo", "other"}
    assert [one["wanted"] for one in shown_.values()] == [True, True]
    assert shown_["demo"] == next(one for one in drifts[0] if one["name"] == "demo")
    assert shown_["other"] == next(one for one in drifts[1] if one["name"] == "other")
    # A Spark that does not answer has a row for each.
    gone = [replace(one, facts=None, problem="no route to host") for one in results]
    (host,) = status.document({"spark1": gone[1]}, "", "test", {"spark1": [gone[0]]})["hosts"]
    assert [one["name"] for one in host["deployments"]] == ["demo", "other"]


def test_the_ranks_of_a_pair_are_compared_in_their_own_turn(facts: dict[str, Any], tmp_path: Path, spec: Spec) -> None:
    specs, reported = pair_of(facts, tmp_path)
    joined = ranks.join(specs, reported)
    of_pair = {
        host: HostResult(HostIntent.of_rank(specs[host]), deployed_facts(joined[host], reported[host]))
        for host in specs
    }
    small = replace(spec, host="spark1", deployment=replace(spec.deployment, name="small"))
    last = {"spark1": HostResult(HostIntent.of_rank(small), of_pair["spark1"].facts), "spark2": of_pair["spark2"]}
    hosts = status.document(last, "", "test", {"spark1": [of_pair["spark1"]]})["hosts"]
    alone = status.document(of_pair, "", "test")["hosts"]
    assert hosts[1]["deployments"] == alone[1]["deployments"]
    (pair,) = alone[0]["deployments"]
    assert pair in hosts[0]["deployments"]
