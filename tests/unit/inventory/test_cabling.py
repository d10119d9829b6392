"""Cables of three and more Sparks: each topology as links, and each row of the rules by a case."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest

from vllm_spark.inventory import cabling
from vllm_spark.inventory.cabling import FABRICS, NUMBERS, Rule, Shape
from vllm_spark.recipe import loader

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


def test_other_values_lead_to_the_next_row() -> None:
    ring = {"NCCL_ALGO": "Ring"}
    assert cabling.rule(shape("ring", 4, NEW, env=ring)).id == "ring"
    assert cabling.rule(shape("triangle", 3, "2.29.3")).id == "triangle-nccl"
    assert cabling.rule(shape("switch", 3, OLD, drafter=DRAFTER)).id == "switch"
    assert cabling.rule(shape("triangle", 3)).id == "nccl-unknown"


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
