"""A fault in the recipe or the overrides of an inactive deployment is reported, and only what needs it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.edge_cases import DEMO, OTHER, SITE, SPARE, SPARKS
from project_files import DATA, RECIPE_FOLDERS
from vllm_spark.core.refusal import RefusedError
from vllm_spark.inventory import spec
from vllm_spark.inventory.edge_backends import OtherEdge
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.lifecycle import switch
from vllm_spark.transfer import selection

CLOSED = {"open": False}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, ...]:
    """The folders of recipes, and one whose recipe has a summary of four letters."""
    text = (DATA / "recipes" / "everything.yml").read_text()
    start, end = text.index("summary:"), text.index("\n", text.index("summary:"))
    shortened = f"{text[:start]}summary: abcd{text[end:]}".replace("name: everything", "name: hasty")
    (tmp_path / "hasty.yml").write_text(shortened)
    return (tmp_path, *RECIPE_FOLDERS)


# What is wrong with the inactive deployment -> words of the report
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a recipe that is refused": ({"recipe": "hasty"}, "summary"),
    "a recipe that does not exist": ({"recipe": "evrything"}, "unknown recipe evrything"),
    "overrides that no recipe takes": ({"overrides": {"args": {"port": 9}}}, "overrides.args.port"),
    "overrides that this recipe does not take": ({"overrides": {"args": {"max-num-seqs": "lots"}}}, "max-num-seqs"),
}


def inventory(folders: tuple[Path, ...], *deployments: dict[str, Any], edge: dict[str, Any]) -> spec.Inventory:
    return spec.Inventory(
        deployments=list(deployments),
        sparks=SPARKS,
        limit=("spark1", "spark2"),
        recipe_folders=folders,
        secrets={"HF_TOKEN": True},
        edge=edge,
        edges={host: OtherEdge(edge, "a") for host in SITE},
    )


@pytest.mark.parametrize("edge", [CLOSED, {"open": True}], ids=["closed", "open"])
@pytest.mark.parametrize("name", FAULTS)
def test_it_is_one_line_of_its_own_spark(name: str, edge: dict[str, Any], folders: tuple[Path, ...]) -> None:
    changes, words = FAULTS[name]
    of = inventory(folders, DEMO, {**OTHER, **changes}, edge=edge)
    resolved = spec.resolve(of, "spark1")
    assert resolved is not None
    [line] = spec.Spec.from_json(json.loads(json.dumps(resolved.to_json()))).edge.unusable
    assert line.startswith("inactive deployment other: ")
    assert words in line
    assert "Fix: " in line
    assert [backend.deployment for backend in resolved.edge.backends] == ([] if edge["open"] else ["demo"])
    assert resolved.inactive == ("other",)


@pytest.mark.parametrize("name", FAULTS)
def test_what_needs_it_is_refused(name: str, folders: tuple[Path, ...]) -> None:
    changes, words = FAULTS[name]
    deployments = [DEMO, {**OTHER, **changes}]
    chosen = inventory(folders, *switch.choose(deployments, "other", ["spark1"]), edge=CLOSED)
    with pytest.raises(RefusedError, match=words):
        spec.resolve(chosen, "spark1")
    with pytest.raises(RefusedError, match=words):
        selection.of_host(inventory(folders, *deployments, edge=CLOSED), "spark1", ["all"])
    [pulled] = selection.of_host(inventory(folders, *deployments, edge=CLOSED), "spark1")
    assert pulled.deployment.name == "demo"


def test_a_site_leaves_it_out_and_only_its_own_spark_reports_it(folders: tuple[Path, ...]) -> None:
    spare = {**SPARE, "recipe": "hasty"}
    of = inventory(folders, DEMO, spare, edge={**CLOSED, "site": SITE})
    resolved = spec.resolve(of, "spark1")
    assert resolved is not None
    assert (resolved.edge.neighbours, resolved.edge.unusable) == ((), ())
    alone = spec.edge_alone(of, "spark2")
    assert alone is not None
    assert len(Edge.from_json(json.loads(json.dumps(alone.to_json()))).unusable) == 1


def test_the_active_one_is_refused_as_ever(folders: tuple[Path, ...]) -> None:
    for changes, words in FAULTS.values():
        with pytest.raises(RefusedError, match=words):
            spec.resolve(inventory(folders, {**DEMO, **changes}, edge=CLOSED), "spark1")
