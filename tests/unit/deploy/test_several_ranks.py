"""Servers of three and four Sparks: their launches, their fabric, and what is refused before a download."""

from __future__ import annotations

import copy
import shlex
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_launches

from vllm_spark.core import paths
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.deploy import launch, ranks
from vllm_spark.inventory import deployment, fabric, placement, spec
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import loader, rules
from vllm_spark.sizing import memory, reference_spark

RECIPE = "qwen3.8-flash-next-bf16-tp4"


def facts(hosts: tuple[str, ...]) -> dict[str, Any]:
    return {
        host: {
            "memory": dict(reference_spark.MEMORY),
            "fabric": reference_spark.fabric(host),
            "images": {},
            "docker": {},
        }
        for host in hosts
    }


def specs_of(recipe: str, hosts: tuple[str, ...]) -> dict[str, Spec]:
    placed = {"name": "demo", "recipe": recipe, "hosts": list(hosts)}
    inventory = spec.Inventory([placed], hosts, hosts, recipe_folders=(paths.RECIPES,), edge={"open": True})
    return {host: found for host in hosts if (found := spec.resolve(inventory, host))}


def argv_of(recipe: str, number: int) -> dict[str, list[str]]:
    hosts = reference_spark.HOSTS[:number]
    joined = ranks.join(specs_of(recipe, hosts), facts(hosts))
    return {host: launch.argv(one) for host, one in joined.items()}


def value(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_four_ranks_join_one_engine() -> None:
    by_host = argv_of(RECIPE, 4)
    assert [value(argv, "--node-rank") for argv in by_host.values()] == ["0", "1", "2", "3"]
    assert {value(argv, "--nnodes") for argv in by_host.values()} == {"4"}
    assert {value(argv, "--tensor-parallel-size") for argv in by_host.values()} == {"4"}
    assert {value(argv, "--master-addr") for argv in by_host.values()} == {"192.168.177.10"}
    assert ["--headless" in argv for argv in by_host.values()] == [False, True, True, True]
    # One fingerprint: a change of any rank is a change of the service.
    assert len({value(argv, "--launch") for argv in by_host.values()}) == 1
    for host, argv in by_host.items():
        assert spark_launches.needs("\nexec " + shlex.join(argv))["peers"] == [name for name in by_host if name != host]


def test_the_firewall_lets_every_other_rank_in() -> None:
    hosts = reference_spark.HOSTS[:4]
    script = launch.script(ranks.join(specs_of(RECIPE, hosts), facts(hosts))["spark2"])
    for address in ("192.168.177.10", "192.168.177.12", "192.168.177.13"):
        assert f'peers {{ "enp1s0f1np1" . {address} }}' in script
    assert "Only spark1 and spark3 and spark4 may reach" in script
    assert "ends it with the others." in script


def test_deployments_on_other_sparks_run_beside_it() -> None:
    """Both have the usual ports, and one turn deploys both."""
    left, right = (
        {"name": name, "recipe": RECIPE, "hosts": list(hosts)}
        for name, hosts in (("left", reference_spark.HOSTS[:4]), ("right", reference_spark.HOSTS[4:8]))
    )
    placed = deployment.parse([left, right])
    assert deployment.turns(placed) == [["left", "right"]]
    assert [deployment.port_set(placed, one.name) for one in placed] == [0, 0]


def test_a_rank_without_the_common_subnet_is_refused() -> None:
    hosts = reference_spark.HOSTS[:3]
    known = {host: one["fabric"] for host, one in facts(hosts).items()}
    for netdev in known["spark3"]["netdevs"]:
        netdev["addresses"] = [{"address": "10.9.0.3", "prefix": 24}]
    with pytest.raises(RefusedError, match=r"(?s)no fabric joins spark1 and spark2 and spark3.*a switch") as refused:
        fabric.choose(known)
    assert [one.id for one in refused.value.refusals] == ["fabric-none"]


@pytest.mark.parametrize(
    ("index", "change", "named"), [(2, "mtu", "fabric-mtu"), (1, "address", "fabric-same-address")]
)
def test_every_rank_is_compared(index: int, change: str, named: str) -> None:
    hosts = reference_spark.HOSTS[:4]
    known = copy.deepcopy({host: one["fabric"] for host, one in facts(hosts).items()})
    netdev = known[hosts[index]]["netdevs"][0]
    if change == "mtu":
        netdev["mtu"] = 1500
    else:
        netdev["addresses"] = copy.deepcopy(known["spark4"]["netdevs"][0]["addresses"])
    with pytest.raises(RefusedError) as refused:
        fabric.choose(known)
    assert named in {one.id for one in refused.value.refusals}


def changed(**topology: Any) -> Document:
    recipe = loader.load(RECIPE).document
    return {**recipe, "topology": {**recipe["topology"], **topology}}


@pytest.mark.parametrize(
    ("topology", "fault"),
    [
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, ""),
        ({"nodes": 8, "tensor_parallel": 8}, ""),
        ({"tensor_parallel": 2}, "topology.tensor_parallel: 2"),
        ({"nodes": 3, "pipeline_parallel": 2}, "topology.tensor_parallel: 4 and pipeline_parallel: 2"),
        ({"executor": "ray"}, "topology.executor: ray"),
        ({"executor": "uni"}, "topology.executor: uni"),
    ],
)
def test_the_ranks_of_a_topology_are_its_sparks(topology: dict[str, Any], fault: str) -> None:
    found = [one.what for one in rules.recipe_faults(changed(**topology), RECIPE)]
    assert found == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("recipe", "topology", "engine", "text"),
    [
        ("minimax-m2.7-nvfp4-tp2", {"nodes": 4, "tensor_parallel": 4}, "0.30.0", ""),
        ("minimax-m2.7-nvfp4-tp2", {"nodes": 4, "tensor_parallel": 4}, "0.24.0", "NCCL 2.28.9 leaks the slots"),
        ("minimax-m2.7-nvfp4-tp2", {"nodes": 3, "tensor_parallel": 3}, "0.30.0", "3 ranks cannot share"),
        ("minimax-m2.7-nvfp4-tp2", {"nodes": 4, "tensor_parallel": 4, "executor": "ray"}, "0.30.0", "executor ray"),
        (RECIPE, {"tensor_parallel": 2, "pipeline_parallel": 2}, "0.30.0", "vLLM starts no drafter under one"),
    ],
)
def test_what_fails_over_a_switch_is_refused_before_a_download(
    recipe: str, topology: dict[str, Any], engine: str, text: str
) -> None:
    document = loader.load(recipe).document
    document = {
        **document,
        "topology": {**document["topology"], **topology},
        "engine": {"version": engine, **({"ray": "2.55.1"} if topology.get("executor") == "ray" else {})},
    }
    refusals = [str(one) for one in placement.executor_refusals(document)]
    assert len(refusals) == bool(text), refusals
    assert all(text in one for one in refusals)


def test_a_rank_of_a_pipeline_holds_its_stage() -> None:
    recipe = loader.load("minimax-m2.7-nvfp4-tp2").document
    model = memory.model_of(recipe)
    assert model

    def fit(tensor: int, stages: int) -> memory.Fit:
        topology = {"nodes": tensor * stages, "tensor_parallel": tensor, "executor": "mp"}
        split = {**recipe, "topology": {**topology, **({"pipeline_parallel": stages} if stages > 1 else {})}}
        return memory.fit(split, model, reference_spark.MEMORY, 8192)

    # 62 layers in two stages are as many on each rank. An end has the embedding or the output head, which are alike.
    assert fit(2, 2).weights == fit(4, 1).weights
    # In three stages one has 21 of them, and an end of the pipeline on top.
    assert 1.0 < fit(1, 3).weights * 3 / fit(1, 1).weights < 1.05
    assert fit(2, 2).request == fit(2, 1).request // 2
