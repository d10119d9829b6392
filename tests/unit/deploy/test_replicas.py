"""The sum of servers of one model behind one address, against fewer servers over more ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml

import printed_figures
from project_files import RECIPE_FOLDERS
from vllm_spark.core import paths
from vllm_spark.core.types import Facts
from vllm_spark.deploy import replicas
from vllm_spark.deploy.preview import Preview
from vllm_spark.inventory import spec
from vllm_spark.inventory.edge_backends import OtherEdge
from vllm_spark.sizing import constants, forecast, reference_spark
from vllm_spark.sizing.forecast import ForecastContext, ForecastRequest

PAGE = paths.ROOT / "docs" / "operations" / "more-sparks.md"
DENSE, MOE, THREE = "gemma-4-31b-nvfp4", "qwen3.6-35b-a3b-nvfp4-mtp", ["spark1", "spark2", "spark3"]
KNOWN = constants.constants_of({})


def previews(deployments: Sequence[dict[str, Any]], streams: int, *, site: bool = True) -> dict[str, Preview]:
    """Return the previews of Sparks with an edge for each, as plan.yml has them."""
    hosts = tuple(host for each in deployments for host in each["hosts"])
    addresses = {host: f"192.168.1.{20 + number}" for number, host in enumerate(hosts)}
    edge = {"open": False, **({"site": addresses} if site else {})}
    edges = dict.fromkeys(hosts, OtherEdge(edge, "edge"))
    whole = spec.Inventory(
        deployments=deployments, sparks=hosts, limit=hosts, recipe_folders=RECIPE_FOLDERS, edge=edge, edges=edges
    )
    found = {}
    for host in hosts:
        one = spec.resolve(whole, host)
        assert one
        facts: dict[str, Facts] = {name: {"memory": reference_spark.MEMORY} for name in one.deployment.hosts}
        foreseen = forecast.forecast("x", one.recipe, facts, ForecastRequest(streams=streams), ForecastContext())
        found[host] = Preview([], [], one, forecast=None if one.rank else foreseen)
    return found


def each(recipe: str, hosts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"name": f"on-{host}", "recipe": recipe, "hosts": [host]} for host in hosts]


def lines(found: dict[str, Preview], streams: int) -> list[str]:
    return replicas.lines(found, ForecastRequest(streams=streams), KNOWN)


def test_the_page_shows_what_plan_prints_for_its_example() -> None:
    group = yaml.safe_load((paths.ROOT / "docs/examples/four-sparks.yml").read_text(encoding="utf-8"))["sparks"]
    printed = "\n".join(lines(previews(group["vars"]["vllm_deployments"], 8), 8))
    assert printed_figures.differences(printed_figures.blocks(PAGE)[0], printed) == []


def test_the_sum_is_that_of_the_forecasts() -> None:
    found = previews(each(DENSE, ["spark1", "spark2"]), 4)
    speeds = [one.forecast.prediction for one in found.values() if one.forecast and one.forecast.prediction]
    total = sum(speed.slow.tokens_per_s * 4 for speed in speeds)
    assert len(speeds) == 2
    assert f"  together {total:.0f} tok/s, one request {speeds[0].slow.tokens_per_s:.0f} tok/s: as deployed" in lines(
        found, 4
    )


def test_a_larger_server_has_the_load_of_all_and_says_what_it_needs() -> None:
    four = lines(previews(each(DENSE, [*THREE, "spark4"]), 2), 2)
    assert [line.partition(": ")[2] for line in four[2:4]] == [
        "2 servers of tensor parallel 2, a cable each",
        "1 server of tensor parallel 4, a switch",
    ]
    assert "4 servers on 4 Sparks behind one address, 8 requests at once" in four[0]


def test_three_sparks_have_no_larger_server_of_equal_parts() -> None:
    title, deployed, remark = lines(previews(each(MOE, THREE), 1), 1)
    assert title.startswith("qwen3.6-35b: 3 servers on 3 Sparks")
    assert deployed.endswith(": as deployed")
    assert remark.startswith("  without one replica")


@pytest.mark.parametrize(
    ("deployments", "site"),
    [
        ([*each(DENSE, ["spark1"]), *each("qwen3.6-27b-nvfp4-mtp", ["spark2"])], True),
        (each(DENSE, ["spark1", "spark2"]), False),
        ([*each(DENSE, ["spark1"]), *each(MOE, ["spark2"])], True),
    ],
)
def test_there_is_no_sum_of_one_server_or_without_a_site(deployments: list[dict[str, Any]], site: bool) -> None:
    assert lines(previews(deployments, 1, site=site), 1) == []


def test_a_server_without_a_forecast_is_left_out() -> None:
    found = previews(each(DENSE, THREE), 1)
    found["spark3"] = replace(found["spark3"], forecast=None)
    assert "2 servers on 2 Sparks" in lines(found, 1)[0]
