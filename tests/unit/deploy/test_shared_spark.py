"""Several deployments on one Spark (issue 52): their launches, units and files, and that one alone stays as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fakes.cases import asked, build, hosts_of, intents
from fakes.catalogue import NAMES, planned
from project_files import DATA, RECIPE_FOLDERS
from vllm_spark.core.units import GIB
from vllm_spark.deploy import budgets, exclusion, files, firewall, launch, plan, preview, ranks
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory import deployment, spec
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.host_layout import MODULES, TURN_PROGRAM
from vllm_spark.recipe import loader
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest

CHAT = {"name": "chat", "recipe": "gpt-oss-20b", "hosts": ["spark1"]}
FAST = {"name": "fast", "recipe": "nemotron-3.5-lightning-nvfp4", "hosts": ["spark1"], "port": 8001}
BIG = {"name": "big", "recipe": "gpt-oss-120b", "hosts": ["spark1"], "active": False}


def resolved(*entries: Mapping[str, Any], chosen: str, host: str = "spark1", is_open: bool = False) -> Spec:
    hosts = ("spark1", "spark2")
    inventory = spec.Inventory(
        deployments=[dict(entry) for entry in entries], sparks=hosts, limit=hosts, recipe_folders=RECIPE_FOLDERS,
        edge={"open": is_open}, chosen=(chosen,),
    )  # fmt: skip
    found = spec.resolve(inventory, host)
    assert found is not None
    return Spec.from_json(json.loads(json.dumps(found.to_json())))


@pytest.fixture(name="joined")
def fixture_joined(facts: dict[str, Any]) -> dict[str, Spec]:
    """The specs of two deployments of one Spark, as a deploy renders them."""
    names = [resolved(*order, chosen=name) for name, order in (("chat", (CHAT, FAST)), ("fast", (FAST, CHAT)))]
    return {one.deployment.name: ranks.join({"spark1": one}, {"spark1": facts})["spark1"] for one in names}


def test_each_has_its_cache_in_bytes_and_a_small_gate(joined: dict[str, Spec], facts: dict[str, Any]) -> None:
    flags = {name: launch.flags(one) for name, one in joined.items()}
    caches = {name: own["kv-cache-memory-bytes"] for name, own in flags.items()}
    assert caches == {"chat": 32 * GIB, "fast": 29 * GIB}
    assert {name: own["gpu-memory-utilization"] for name, own in flags.items()} == {"chat": 0.38, "fast": 0.41}
    assert all(f"{TURN_PROGRAM} {name} --" in launch.script(one) for name, one in joined.items())
    table = list(budgets.table(HostContext("spark1", joined["chat"], facts)))
    assert table == list(budgets.table(HostContext("spark1", joined["fast"], facts)))
    assert table[-1].endswith("the host itself has 9.7 GiB, 8.0 GiB stay free, 1.6 GiB left")


def test_a_deploy_says_who_has_what(facts: dict[str, Any], tmp_path: Any) -> None:
    one = resolved(CHAT, FAST, chosen="chat")
    hosts = hosts_of({}, {"spark1": one}, facts, tmp_path)
    paths = dict.fromkeys(asked(one)["paths"], True)
    hosts["spark1"].update(paths=paths, images={one.image: "sha256:1"}, model_files={})
    _, lines = plan.of_host(intents({"spark1": one}), hosts, "spark1", "test")
    assert [line for line in lines if line.startswith("memory of spark1: fast 52.6 GiB")]


@pytest.mark.parametrize("name", ["chat", "fast"])
def test_the_forecast_of_a_shared_spark_has_its_part(name: str, facts: dict[str, Any], tmp_path: Any) -> None:
    """The sum of both is available, and neither takes the share of its recipe."""
    one = resolved(CHAT, FAST, chosen=name)
    hosts = hosts_of({}, {"spark1": one}, facts, tmp_path)
    hosts["spark1"].update(
        paths=dict.fromkeys(asked(one)["paths"], True), images={one.image: "sha256:1"}, weights={}, disks={}
    )
    previewed = preview.PreviewedDeploy(intents({"spark1": one}), hosts, "test")
    found = previewed.by_host(ForecastRequest(), ForecastContext())["spark1"]
    assert not found.refusals
    assert found.forecast
    fit = found.forecast.fits["spark1"]
    assert fit.room == {"chat": 32 * GIB, "fast": 29 * GIB}[name]
    assert fit.reserved + fit.beside < 60 * GIB
    assert [line for line in found.lines if line.startswith("memory of spark1: ")]


@pytest.mark.parametrize("held", [True, False])
def test_a_plan_names_who_holds_the_memory_of_the_budgets(held: bool, facts: dict[str, Any], tmp_path: Any) -> None:
    one = resolved(CHAT, FAST, chosen="chat")
    hosts = hosts_of({}, {"spark1": one}, facts, tmp_path)
    spark = hosts["spark1"]
    if held:
        spark["memory"] = {**spark["memory"], "available": spark["memory"]["available"] - 20 * GIB}
        process = {"pid": 4711, "process": "ComfyUI", "bytes": 20 * GIB, "container": None, "unit": None}
        spark["host"] = {"processes": [process]}
    spark.update(paths=dict.fromkeys(asked(one)["paths"], True), weights={}, disks={}, running_units=[])
    previewed = preview.PreviewedDeploy(intents({"spark1": one}), hosts, "test")
    lines = previewed.by_host(ForecastRequest(), ForecastContext())["spark1"].lines
    said = (
        "memory of spark1: 92.0 GiB are available, and the starts together need 110.4 GiB: other programs hold the rest"
    )
    assert sum(line.startswith(said) for line in lines) == held
    assert sum("ComfyUI (pid 4711) computes on the GPU of spark1 and holds 20.0 GiB" in line for line in lines) == held


@pytest.mark.parametrize("name", NAMES)
def test_a_deployment_alone_keeps_its_launch(name: str, facts: dict[str, Any], tmp_path: Any) -> None:
    """Neither the recipe's memory nor a line of the launch knows of others."""
    document = loader.load(name).document
    for one in planned(name, facts, tmp_path):
        assert one.recipe["memory"] == document["memory"]
        assert not one.in_turn
        script, flags = launch.script(one), launch.flags(one)
        assert "take-turn" not in script
        assert "--in-turn" not in script
        memory = document["memory"]
        assert flags.get("gpu-memory-utilization") == memory.get("utilization")
        assert flags.get("kv-cache-memory-bytes") == memory.get("kv_cache_bytes")
        assert launch.script(replace(one, beside={}, port_set=0)) == script


def test_what_does_not_fit_excludes_and_what_fits_does_not() -> None:
    one = resolved(CHAT, FAST, BIG, chosen="chat")
    drop_ins = exclusion.drop_ins(one, ["fast", "big"])
    assert drop_ins.keys() == {"chat", "fast"}
    for text in drop_ins.values():
        assert "Conflicts=vllm@big.service\n" in text
        assert "vllm@fast" not in text
        assert "flush" not in text
        assert "docker rm --force vllm-%i" in text
        assert "ExecStop=-/usr/local/lib/vllm-spark/take-turn --stop %i" in text
    # A neighbour that is not on the host yet places its own.
    assert exclusion.drop_ins(one, []).keys() == {"chat"}
    alone = resolved(CHAT, BIG, chosen="chat")
    assert exclusion.drop_ins(alone, []) == {"chat": exclusion.drop_in_text("chat", ["big"])}


def test_a_neighbour_is_neither_stopped_nor_unknown(facts: dict[str, Any]) -> None:
    one = resolved(CHAT, FAST, BIG, chosen="chat")
    units = ["vllm@chat.service", "vllm@fast.service", "vllm@big.service"]
    assert build(one, {**facts, "running_units": units}).stop_units == ["vllm@big.service"]
    record = files.new_record(ranks.join({"spark1": one}, {"spark1": facts})["spark1"], {}, "f", "test")
    assert record["beside"] == ["fast"]
    assert record["room"]["bytes"] < 56 * GIB


def test_the_firewall_of_an_open_spark_has_the_ports_of_all(facts: dict[str, Any]) -> None:
    """The table is the same in each turn."""
    turns = [resolved(CHAT, FAST, chosen=name, is_open=True) for name in ("chat", "fast")]
    ports = [[one.port for one in firewall.entrances(HostIntent.of_rank(turn))] for turn in turns]
    assert ports == [[8000, 8001]] * 2


def test_an_edge_has_the_models_of_all() -> None:
    edges = [resolved(CHAT, FAST, BIG, chosen=name).edge for name in ("chat", "fast")]
    assert edges[0] == edges[1]
    assert {backend.deployment for backend in edges[0].backends} == {"chat", "fast", "big"}


def test_a_pair_beside_a_small_server_has_turns_and_no_flush(facts: dict[str, Any], tmp_path: Any) -> None:
    pair = {"name": "pair", "recipe": "gemma-4-31b-fp8-tp2", "hosts": ["spark1", "spark2"], "port": 8002}
    swapped = {**pair, "name": "swapped", "hosts": ["spark2", "spark1"], "port": 8003}
    for entries, number in (((pair, swapped), 0), ((swapped, pair), 1)):
        small = {**CHAT, "overrides": {"memory": {"kv_cache_bytes": GIB}}}
        specs = {host: resolved(small, *entries, chosen="pair", host=host) for host in ("spark1", "spark2")}
        hosts = hosts_of({}, specs, facts, tmp_path / str(number))
        joined = ranks.join(specs, hosts)
        scripts = {host: launch.script(one) for host, one in joined.items()}
        assert all("flush set" not in script for script in scripts.values())
        assert all(f"--in-turn {host}" in script for host, script in scripts.items())
        assert all(f"--port {25000 + 100 * number}" in script for script in scripts.values())
        assert all(f"{{ {25000 + 100 * number}-{25099 + 100 * number}, 10001" in script for script in scripts.values())
        # Both ranks have what the fuller Spark allows.
        assert len({one.recipe["memory"]["kv_cache_bytes"] for one in joined.values()}) == 1
        files_ = [file.path for file in files.files(joined["spark1"], {}, {}, {})]
        assert {TURN_PROGRAM, f"{MODULES}/vllm_spark/node/turn.py"} <= set(files_)


@pytest.mark.parametrize(
    ("share", "running", "stops"),
    [(0.85, ["fast"], ["vllm@fast.service"]), (0.3, ["fast"], []), (0.85, [], []), (0.85, ["other"], [])],
)
def test_a_neighbour_with_more_than_its_budget_makes_room(
    share: float, running: list[str], stops: list[str], facts: dict[str, Any], tmp_path: Any
) -> None:
    """Such as one that had the Spark alone until this deploy. Its own turn starts it again."""
    one = resolved(CHAT, FAST, chosen="chat")
    hosts = hosts_of({}, {"spark1": one}, facts, tmp_path)
    spark = hosts["spark1"]
    spark["records"]["fast"] = {"room": {"share": share, "bytes": 0, "floor_bytes": 8 * GIB}}
    spark["running_units"] = [f"vllm@{name}.service" for name in running]
    joined = ranks.join({"spark1": one}, hosts)["spark1"]
    planned_ = build(joined, spark)
    assert planned_.make_room == stops
    said = [line for line in plan.summary(joined, planned_, acts=True) if "until its own turn" in line]
    assert len(said) == len(stops)
    assert asked(one)["records"].keys() == {"chat", "fast"}


def test_turns_keep_deployments_of_one_spark_apart() -> None:
    def placed(name: str, *hosts: str, active: bool = True) -> deployment.Deployment:
        return deployment.Deployment(name, "r", hosts, active=active)

    several = [placed("a", "s1"), placed("p", "s1", "s2"), placed("b", "s2"), placed("q", "s2", "s1"),
               placed("off", "s1", active=False), placed("c", "s3")]  # fmt: skip
    assert deployment.turns(several) == [["a", "b", "c"], ["p"], ["q"]]
    assert [deployment.port_set(several, name) for name in ("a", "p", "q", "b")] == [0, 0, 1, 0]


def test_a_host_has_the_turns_of_its_deployments() -> None:
    raw = [CHAT, FAST, {"name": "other", "recipe": "gpt-oss-20b", "hosts": ["spark2"]}]
    assert deployment.turns_of_host(raw, "spark1") == [["chat", "other"], ["fast"]]
    assert deployment.turns_of_host(raw, "spark2") == [["chat", "other"]]
    # A host without any takes part in the first one.
    assert deployment.turns_of_host(raw, "spark3") == [["chat", "other"]]
    assert deployment.turns_of_host([{"name": 1}], "spark1") == [[]]


def test_the_memory_of_the_sample_host_is_that_of_a_spark() -> None:
    facts = json.loads((DATA / "facts" / "spark.json").read_text())
    assert round(facts["memory"]["total"] / GIB, 1) == 121.7
