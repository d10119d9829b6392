"""The inventories of docs/examples for four Sparks: each Spark serves its part, and its edge forwards to the others."""

from __future__ import annotations

import pytest
import yaml

from project_files import RECIPE_FOLDERS
from vllm_spark.core import paths
from vllm_spark.inventory import spec
from vllm_spark.inventory.edge_backends import OtherEdge

EXAMPLES = paths.ROOT / "docs" / "examples"


@pytest.mark.parametrize(
    ("name", "served", "forwards"),
    [
        ("four-sparks", ["a1", "a2", "a3", "a4"], {"spark1": 3, "spark2": 3, "spark3": 3, "spark4": 3}),
        ("two-pairs", ["large", "large", "code", "code"], {"spark1": 1, "spark2": 2, "spark3": 1, "spark4": 2}),
    ],
)
def test_an_example_of_four_sparks_resolves(name: str, served: list[str], forwards: dict[str, int]) -> None:
    group = yaml.safe_load((EXAMPLES / f"{name}.yml").read_text(encoding="utf-8"))["sparks"]
    hosts, edge = tuple(group["hosts"]), group["vars"]["vllm_edge"]
    whole = spec.Inventory(
        deployments=group["vars"]["vllm_deployments"],
        sparks=hosts,
        limit=hosts,
        recipe_folders=RECIPE_FOLDERS,
        edge=edge,
        edges=dict.fromkeys(hosts, OtherEdge(edge, "edge")),
    )
    specs = [one for host in hosts if (one := spec.resolve(whole, host))]
    assert [one.deployment.name for one in specs] == served
    assert {one.edge.host: len(one.edge.neighbours) for one in specs} == forwards
