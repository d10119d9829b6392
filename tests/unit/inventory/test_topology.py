"""Sparks that something else has cabled and addressed, judged by the links of their topology."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fakes.cabled_sparks import facts
from project_files import DATA
from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.inventory import topology
from vllm_spark.inventory.topology import Topology

CASES = yaml.safe_load((DATA / "topologies.yml").read_text())
FOUR = [f"spark{number}" for number in range(1, 5)]


def judged(case: dict[str, Any]) -> tuple[list[str], list[Refusal]]:
    """Return (the lines, the refusals) about a case."""
    hosts = [f"spark{number}" for number in range(1, case["sparks"] + 1)]
    known = {key: case[key] for key in ("changes", "deaf", "form") if key in case}
    cables = [list(map(str, cable)) for cable in case.get("cables", [])]
    try:
        found = facts(case["fabric"], case["sparks"], cables, **known)
        return topology.judge(Topology(case["fabric"], tuple(hosts)), found), []
    except RefusedError as error:
        return [], list(error.refusals)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    lines, refusals = judged(case)
    assert [one.id for one in refusals] == case.get("ids", []), "\n".join(map(str, refusals))
    text = "\n".join([*lines, *map(str, refusals)])
    for part in case["says"]:
        assert part in text
    for part in case.get("silent", []):
        assert part not in text
    for one in refusals:
        assert (paths.RUNBOOKS / f"{one.runbook}.md").is_file()
    assert len(set(lines)) == len(lines)


def test_each_topology_has_a_case_that_is_accepted_and_one_that_is_not() -> None:
    assert {(case["fabric"], bool(case.get("ids"))) for case in CASES} == {
        (fabric, refused) for fabric in ("switch", "triangle", "ring") for refused in (False, True)
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("ring", "vllm_topology is 'ring' — expected: fabric (switch, triangle or ring) and sparks"),
        ({"fabric": "ring"}, "expected: fabric (switch, triangle or ring) and sparks"),
        ({"fabric": "star", "sparks": FOUR}, "4 Sparks by 'star' — expected: switch of 3 or 4 or 8, triangle of 3, ring of 4"),
        ({"fabric": "ring", "sparks": FOUR[:3]}, "vllm_topology has 3 Sparks by 'ring'"),
        ({"fabric": "ring", "sparks": [*FOUR[:3], "nas"]}, "different hosts of the group sparks: spark1, spark2, spark3, spark4"),
        ({"fabric": "ring", "sparks": [*FOUR[:3], "spark1"]}, "vllm_topology.sparks is spark1, spark2, spark3, spark1"),
    ],
)
def test_a_wrong_topology_of_the_inventory(value: object, says: str) -> None:
    with pytest.raises(RefusedError) as refused:
        topology.parse(value, FOUR, FOUR, [])
    assert says in str(refused.value)
    assert str(refused.value).endswith("docs/runbooks/fabric-plan.md")


def test_a_run_of_a_part_and_a_link_of_the_toolkit_are_refused() -> None:
    value = {"fabric": "ring", "sparks": FOUR}
    with pytest.raises(RefusedError) as refused:
        topology.parse(value, FOUR, FOUR[:2], ["spark2"])
    text = str(refused.value)
    assert "this run leaves out spark3, spark4" in text
    assert "Fix: -l spark1,spark2,spark3,spark4." in text
    assert "vllm_topology names spark2 with a vllm_fabric" in text
    assert topology.parse(value, FOUR, FOUR, []).links[0] == (("spark1", 0), ("spark2", 1))


def test_each_spark_tests_the_subnets_of_its_own_links() -> None:
    known = facts("ring", 4, changes={"spark2": {"enp1s0f1np1": {"mtu": 1500}}})
    found = topology.link_tests("spark2", Topology("ring", tuple(FOUR)), known)
    assert found["peer"] == "spark1 or spark3"
    assert {(ping["netdev"], ping["peer"]) for ping in found["pings"]} == {
        ("enp1s0f1np1", "192.168.177.11"),
        ("enP2p1s0f1np1", "192.168.178.11"),
        ("enp1s0f0np0", "192.168.179.12"),
        ("enP2p1s0f0np0", "192.168.180.12"),
    }
    sizes = {netdev: {one["size"] for one in found["pings"] if one["netdev"] == netdev} for netdev in found["netdevs"]}
    assert sizes["enp1s0f1np1"] == {1472, 56}
    assert sizes["enp1s0f0np0"] == {8972, 56}
    assert all(netdev["carrier"] for netdev in found["netdevs"].values())
