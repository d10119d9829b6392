"""Cables of three and more Sparks: each topology as links, and each row of the rules by a case."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest

from vllm_spark.inventory import cabling, placement
from vllm_spark.inventory.cabling import FABRICS, NUMBERS, Rule, Shape
from vllm_spark.recipe import loader
from vllm_spark.sizing import tensor_parallel

TOPOLOGIES = [(fabric, sparks) for fabric in FABRICS for sparks in NUMBERS if cabling.links(fabric, sparks)]


def shape(fabric: str, sparks: int, nccl: str = "", *, pipeline: bool = False, **changes: Mapping[str, Any]) -> Shape:
    """Return a shape of a recipe without a drafter, with changes to its blocks."""
    recipe = dict(loader.load("minimax-m2.7-nvfp4-tp2").document)
    for block, change in changes.items():
        recipe[block] = {**recipe.get(block, {}), **change}
    return Shape(fabric, sparks, recipe, nccl, pipeline)


NEW, OLD = "2.30.7", "2.29.7"
DRAFTER = {"repository": "o/m", "speculative_tokens": 2}

# The row that decides -> a shape of it.
CASES = {
    "nccl-proxy-slots": shape("switch", 4, "2.28.9"),
    "pipeline-drafter": shape("switch", 3, OLD, pipeline=True, drafter=DRAFTER),
    "pipeline-connector": shape("switch", 3, OLD, pipeline=True, args={"kv-offloading-size": 8}),
    "switch-eight-pipeline": shape("switch", 8, OLD, pipeline=True),
    "switch-eight": shape("switch", 8, OLD),
    "switch": shape("switch", 4),
    "triangle-number": shape("triangle", 4, NEW),
    "triangle-nccl": shape("triangle", 3, OLD),
    "triangle": shape("triangle", 3, NEW),
    "ring-three": shape("ring", 3, NEW),
    "ring-eight": shape("ring", 8, NEW),
    "ring-pipeline": shape("ring", 4, NEW, pipeline=True),
    "ring-algorithm": shape("ring", 4, NEW, env={"NCCL_ALGO": "Tree"}),
    "ring-patched": shape("ring", 4, NEW, env={"NCCL_SKIP_TREE_CONNECT": "1"}),
    "ring-nccl": shape("ring", 4, OLD),
    "ring": shape("ring", 4, NEW),
    "nccl-unknown": shape("ring", 4),
}
VERDICTS = {
    "switch": cabling.READ,
    "switch-eight": cabling.READ,
    **dict.fromkeys(("triangle", "ring", "pipeline-connector"), cabling.UNPROVEN),
}


def test_each_row_has_a_case_and_decides_about_it() -> None:
    assert {row.id: cabling.rule(CASES[row.id]).id for row in cabling.rules()} == {row: row for row in CASES}


@pytest.mark.parametrize("row", cabling.rules(), ids=lambda row: row.id)
def test_a_row_has_its_verdict_its_source_and_what_to_do_instead(row: Rule) -> None:
    assert row.verdict == VERDICTS.get(row.id, cabling.REFUSED)
    # A row of data whose text ends too early has lost its rest to a comment.
    assert row.source[-1:] not in {"", ","}
    assert row.why
    assert bool(row.fix or row.instead) == (row.verdict != cabling.READ)
    assert row.instead in {*FABRICS, ""}
    assert row.instead != CASES[row.id].fabric
    # What a refusal recommends is not refused in turn.
    instead = replace(CASES[row.id], fabric=row.instead or CASES[row.id].fabric)
    assert not row.instead or cabling.rule(instead).verdict == cabling.READ


CONNECTOR, SKIPPED = {"args": {"kv-transfer-config": {}}}, {"env": {"NCCL_SWITCHLESS_RING_ONLY": "1"}}
# The bounds of each row: fabric, Sparks, NCCL, in stages, changes of the recipe; the row that decides.
BOUNDS: list[tuple[str, int, str, bool, dict[str, Any], str]] = [
    ("switch", 4, "2.28.8", False, {}, "switch"),
    ("switch", 8, "2.28.9", True, {}, "nccl-proxy-slots"),
    ("triangle", 3, "2.28.9", False, {}, "nccl-proxy-slots"),
    ("ring", 4, "2.29.2", False, {}, "nccl-proxy-slots"),
    ("switch", 4, "2.29.3", False, {}, "switch"),
    ("switch", 3, OLD, False, {"drafter": DRAFTER}, "switch"),
    ("switch", 8, OLD, True, {"drafter": DRAFTER}, "pipeline-drafter"),
    ("triangle", 3, NEW, True, {"drafter": DRAFTER}, "pipeline-drafter"),
    ("ring", 4, NEW, True, {"drafter": DRAFTER}, "pipeline-drafter"),
    ("switch", 4, OLD, False, CONNECTOR, "switch"),
    ("switch", 4, OLD, True, CONNECTOR, "pipeline-connector"),
    ("ring", 4, NEW, True, CONNECTOR, "pipeline-connector"),
    ("switch", 3, OLD, True, {}, "switch"),
    ("switch", 4, OLD, True, {}, "switch"),
    ("switch", 5, OLD, True, {}, "switch"),
    ("switch", 6, OLD, True, {}, "switch"),
    ("switch", 7, OLD, True, {}, "switch"),
    ("switch", 8, "", False, {}, "switch-eight"),
    ("switch", 8, "", True, {}, "switch-eight-pipeline"),
    ("switch", 4, NEW, False, {"env": {"NCCL_ALGO": "Tree"}}, "switch"),
    ("triangle", 8, NEW, False, {}, "triangle-number"),
    ("triangle", 3, "2.29.3", False, {}, "triangle-nccl"),
    ("triangle", 3, "2.30.6", False, {}, "triangle-nccl"),
    ("triangle", 3, NEW, True, {}, "triangle"),
    ("triangle", 3, "", False, {}, "nccl-unknown"),
    ("ring", 3, OLD, False, {}, "ring-three"),
    ("ring", 8, OLD, True, {}, "ring-eight"),
    ("ring", 4, OLD, True, {}, "ring-pipeline"),
    ("ring", 4, NEW, False, {"env": {"NCCL_ALGO": "Ring"}}, "ring"),
    ("ring", 4, NEW, False, {"env": {"NCCL_ALGO": "Ring,Tree"}}, "ring-algorithm"),
    ("ring", 4, OLD, False, {"env": {"NCCL_ALGO": "Tree"}}, "ring-algorithm"),
    ("ring", 4, NEW, False, SKIPPED, "ring-patched"),
    ("ring", 4, "2.29.9", False, {}, "ring-nccl"),
    ("ring", 4, "2.30.0", False, {}, "ring"),
]


@pytest.mark.parametrize("case", BOUNDS, ids=str)
def test_the_bounds_of_a_row(case: tuple[str, int, str, bool, dict[str, Any], str]) -> None:
    fabric, sparks, nccl, pipeline, changes, row = case
    assert cabling.rule(shape(fabric, sparks, nccl, pipeline=pipeline, **changes)).id == row


def test_each_row_has_a_case_beside_it_on_either_side() -> None:
    assert {row for *_, row in BOUNDS} == set(CASES)


# Tensor parallel and stages of a recipe, and the row of its deployment, which is over a switch; None for a pair.
DEPLOYED: list[tuple[int, int, str | None]] = [
    (2, 1, None), (3, 1, "switch"), (1, 3, "switch"), (4, 1, "switch"), (2, 2, "switch"), (1, 5, "switch"),
    (2, 3, "switch"), (1, 7, "switch"), (8, 1, "switch-eight"), (4, 2, "switch-eight-pipeline"),
]  # fmt: skip


@pytest.mark.parametrize(("tensor", "stages", "row"), DEPLOYED)
def test_a_deployment_has_the_row_of_its_shape(tensor: int, stages: int, row: str | None) -> None:
    recipe = tensor_parallel.on_ranks(shape("switch", 4).recipe, tensor * stages, tensor)
    found = cabling.of_recipe(recipe)
    assert (found.id if found else None) == row
    refused = [one.what for one in placement.executor_refusals(recipe) if "(rule " in one.what]
    assert len(refused) == bool(found and found.verdict == cabling.REFUSED)


@pytest.mark.parametrize(
    "combination", list(itertools.product(FABRICS, NUMBERS, ("", "2.28.9", OLD, NEW), (False, True)))
)
def test_a_row_decides_about_every_combination(combination: tuple[str, int, str, bool]) -> None:
    fabric, sparks, nccl, pipeline = combination
    found = cabling.rule(shape(fabric, sparks, nccl, pipeline=pipeline))
    # A shape that is not refused has links to plan.
    assert found.verdict == cabling.REFUSED or (fabric, sparks) in TOPOLOGIES


@pytest.mark.parametrize(("fabric", "sparks"), TOPOLOGIES)
def test_each_port_is_plugged_once_and_each_spark_is_joined(fabric: str, sparks: int) -> None:
    links = cabling.links(fabric, sparks)
    ends = [end for link in links for end in link]
    assert len({(end.rank, end.port) for end in ends}) == len(ends)
    assert {end.rank for end in ends} == set(range(sparks))
    if fabric == "switch":
        assert [len(link) for link in links] == [sparks]
    else:
        # NCCL pairs ports by their number, so that a cable joins port 0 of one Spark and port 1 of the next one.
        assert [[end.port for end in link] for link in links] == [[0, 1]] * sparks
        assert {frozenset(end.rank for end in link) for link in links} == {
            frozenset({rank, (rank + 1) % sparks}) for rank in range(sparks)
        }


@pytest.mark.parametrize(("fabric", "sparks"), TOPOLOGIES)
def test_the_addresses_of_a_link_have_two_subnets_of_their_own(fabric: str, sparks: int) -> None:
    links = cabling.links(fabric, sparks)
    numbered = cabling.addresses(links)
    every = [address for own in numbered.values() for address in own.values()]
    assert len(set(every)) == len(every) == 2 * sum(map(len, links))
    subnets = []
    for link in links:
        twins = [[IPv4Interface(numbered[end.host][netdev]).network for netdev in end.netdevs] for end in link]
        assert all(one == twins[0] for one in twins)
        subnets += twins[0]
    assert len(set(subnets)) == len(subnets)


def test_a_switch_has_the_variables_of_a_pair_and_cables_those_of_their_row() -> None:
    links = cabling.links("switch", 4)
    of_switch = cabling.variables(links, cabling.rule(CASES["switch"]), cabling.addresses(links))
    assert of_switch["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert (of_switch["VLLM_HOST_IP"], of_switch["NCCL_SOCKET_IFNAME"]) == ("192.168.177.11", "=enp1s0f1np1")
    assert "NCCL_ALGO" not in of_switch
    links = cabling.links("ring", 4)
    of_ring = cabling.variables(links, cabling.rule(CASES["ring"]), cabling.addresses(links))
    assert of_ring["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1"
    assert (of_ring["NCCL_ALGO"], of_ring["GLOO_SOCKET_IFNAME"]) == ("Ring", "enP7s7")
    assert of_ring["VLLM_HOST_IP"] == "ADDRESS_ON_enP7s7"


def test_the_flags_join_all_ranks() -> None:
    links = cabling.links("switch", 8)
    flags = cabling.flags(links, cabling.rule(CASES["switch-eight"]), cabling.addresses(links))
    assert (flags["nnodes"], flags["master-addr"]) == (8, "192.168.177.11")
    assert flags["distributed-executor-backend"] == "mp"


@pytest.mark.parametrize(
    ("engine", "nccl"),
    [("0.19.1", ""), ("0.21.0", "2.28.9"), ("0.26.0", ""), ("0.28.0", OLD), ("0.32.0", OLD), ("0.33.0", NEW)],
)
def test_the_nccl_of_an_engine(engine: str, nccl: str) -> None:
    assert cabling.nccl_of(engine) == nccl


@pytest.mark.parametrize("fabric", FABRICS)
def test_each_failure_has_how_it_shows_and_its_source(fabric: str) -> None:
    found = cabling.failures(fabric)
    assert len(found) > 3
    assert all(one.what and one.shows and one.source for one in found)
