"""Sparks that something else has cabled and addressed, judged by the links of their topology."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

import printed_figures
from fakes.cabled_sparks import facts
from project_files import DATA
from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.inventory import topology

CASES = yaml.safe_load((DATA / "topologies.yml").read_text())
FOUR = [f"spark{number}" for number in range(1, 5)]


def judged(case: dict[str, Any]) -> tuple[list[str], list[Refusal]]:
    """Return (the lines, the refusals) about a case."""
    hosts = [f"spark{number}" for number in range(1, case["sparks"] + 1)]
    known = {key: case[key] for key in ("changes", "deaf", "form") if key in case}
    cables = [list(map(str, cable)) for cable in case.get("cables", [])]
    try:
        found = facts(case["fabric"], case["sparks"], cables, **known)
        return topology.judge({"fabric": case["fabric"], "sparks": hosts}, found), []
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
        ("ring", 'vllm_topology: "ring" — expected: a map'),
        ({"fabric": "ring"}, "vllm_topology: "),
        ({"fabric": "star", "sparks": FOUR}, "vllm_topology.fabric"),
        (
            {"fabric": "ring", "sparks": FOUR[:3]},
            "a ring of 3 Sparks — expected: one of switch of 3, switch of 4, switch of 8, triangle of 3, ring of 4",
        ),
        (
            {"fabric": "ring", "sparks": [*FOUR[:3], "nas"]},
            "vllm_topology.sparks: nas — expected: hosts of the group sparks: spark1, spark2, spark3, spark4",
        ),
        ({"fabric": "ring", "sparks": [*FOUR[:3], "spark1"]}, "expected: every entry once"),
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
    assert "this run leaves out spark3, spark4 — expected: all of them: -l spark1,spark2,spark3,spark4" in text
    assert "vllm_topology.sparks: spark2 with a vllm_fabric" in text
    assert topology.parse(value, FOUR, FOUR, []) == value


def test_each_spark_tests_the_subnets_of_its_own_links() -> None:
    known = facts("ring", 4, changes={"spark2": {"enp1s0f1np1": {"mtu": 1500}}})
    found = topology.link_tests("spark2", {"fabric": "ring", "sparks": FOUR}, known)
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


def test_the_page_shows_what_is_accepted() -> None:
    said = topology.judge({"fabric": "ring", "sparks": FOUR}, facts("ring", 4))
    shown = printed_figures.blocks(paths.ROOT / "docs" / "operations" / "more-sparks.md")[3]
    assert shown.strip() == f"spark1  {said[0]}"
