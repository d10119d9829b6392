"""One address for a site: what the plan makes of the inventory, and every site that it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from fakes.edge_cases import DEMO, OTHER, PAIR, REPLICA, SITE, SPARE, THIRD, edge_of, resolved
from fakes.fake_ansible import FakeRun
from project_files import RECIPE_FOLDERS
from vllm_spark.core.refusal import RefusedError
from vllm_spark.edge import config, site, steps
from vllm_spark.inventory import edge
from vllm_spark.inventory.edge_backends import OtherEdge
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.verify import runner

SETTINGS = {"open": False, "site": SITE}
# The weights of another recipe.
WEIGHTS = "gemma-4-26b-a4b-fp8-mtp"
ALL = [DEMO, OTHER, REPLICA, SPARE, THIRD]


def renamed(deployment: Mapping[str, Any], **model: Any) -> dict[str, Any]:
    return {**deployment, "overrides": {"model": model}}


def groups(edge: Edge) -> dict[str, tuple[list[str], list[str]]]:
    """Return by the first name: deployments of this Spark, other Sparks."""
    routes = site.routes(edge)
    assert routes is not None
    return {
        " ".join(group.names): ([one.deployment for one in group.local], [one.host for one in group.remote])
        for group in routes.groups
    }


def test_without_a_site_an_edge_knows_its_own_spark_alone() -> None:
    own = edge_of(ALL, {"open": False})
    assert (own.neighbours, own.left_out, site.routes(own)) == ((), (), None)
    text = config.config(own, "192.168.1.20")
    assert "site" not in text
    assert "spark2" not in text


def test_every_name_has_the_sparks_that_serve_it() -> None:
    assert groups(edge_of(ALL, SETTINGS)) == {
        "model": (["demo"], ["spark2"]),
        "o/1 other-model": (["other"], []),
        "spare-model": ([], ["spark2"]),
        "t third-1.5": ([], ["spark3"]),
    }
    assert groups(edge_of(ALL, SETTINGS, "spark3")) == {
        "model": ([], ["spark1", "spark2"]),
        "o/1 other-model": ([], ["spark1"]),
        "spare-model": ([], ["spark2"]),
        "t third-1.5": (["third"], []),
    }


def test_names_that_do_not_always_come_together_have_routes_of_their_own() -> None:
    more = renamed(REPLICA, aliases=["m"])
    assert groups(edge_of([DEMO, more], SETTINGS)) == {"m": ([], ["spark2"]), "model": (["demo"], ["spark2"])}


def test_the_order_of_the_inventory_and_what_is_active_do_not_matter() -> None:
    first = config.config(edge_of(ALL, SETTINGS), "192.168.1.20")
    far = [REPLICA, SPARE, THIRD]
    switched = [{**one, "active": False} for one in reversed(far)]
    assert config.config(edge_of([DEMO, OTHER, *switched], SETTINGS), "192.168.1.20") == first


@pytest.mark.parametrize(
    ("listed", "up"),
    [(" t third-1.5 ", True), (" model t third-1.5 z ", True), (" t x third-1.5 ", True)]
    + [(listed, False) for listed in (" ", " t ", " third-1.5 ", " t third-1x5 ", " xt third-1.5 ")],
)
def test_an_edge_is_up_if_it_lists_every_name(listed: str, up: bool) -> None:
    routes = site.routes(edge_of(ALL, SETTINGS))
    assert routes is not None
    pattern = next(group.listed for group in routes.groups if "t" in group.names)
    assert bool(re.search(pattern, listed)) == up


def test_an_edge_of_a_site_is_plain_json() -> None:
    own = edge_of(ALL, SETTINGS)
    assert Edge.from_json(json.loads(json.dumps(own.to_json()))) == own


def test_the_operator_reads_which_sparks_are_asked_and_which_are_not() -> None:
    partly = {"open": False, "site": {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}}
    lines = list(steps.site_lines(edge_of(ALL, partly)))
    assert lines[0] == "the edge asks 192.168.1.21:9465 for model, spare-model of spark2"
    assert lines[1].startswith("the site's address does not serve the models of spark3: vllm_edge.site does not name")
    assert len(lines) == 2
    assert not list(steps.site_lines(edge_of(ALL, partly, "spark3")))
    assert not list(steps.site_lines(edge_of([PAIR], {**partly, "site_port": 9000})))


def test_the_gate_knows_the_port_of_the_site() -> None:
    assert runner.gate_request(resolved(ALL, SETTINGS), "").edge == {"tls": "own-ca", "site_port": "9465"}
    assert runner.gate_request(resolved(ALL, {"open": False}), "").edge == {"tls": "own-ca"}


def refusals(
    deployments: list[dict[str, Any]], settings: Mapping[str, Any], others: Mapping[str, OtherEdge] = {}
) -> list[tuple[str, str, str]]:
    with pytest.raises(RefusedError) as refused:
        resolved(deployments, settings, others=others)
    return [(refusal.id, refusal.what, refusal.fix) for refusal in refused.value.refusals]


# Deployments, more settings, other Sparks -> id, part of what, part of the fix.
REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, OtherEdge], tuple[str, str, str]]] = {
    "one name for two models": (
        [DEMO, renamed({**REPLICA, "recipe": WEIGHTS}, served_name="model")],
        {},
        {},
        (
            "site-name-clash",
            "model is owner/Model@aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa in deployment demo and ",
            "set overrides.model.served_name",
        ),
    ),
    "one alias for two models": (
        [DEMO, renamed({**THIRD, "recipe": WEIGHTS}, served_name="x", aliases=["model"])],
        {},
        {},
        ("site-name-clash", "model is ", "of third, or remove spark3 from vllm_edge.site"),
    ),
    "one name for two layouts of one model": (
        [DEMO, {**THIRD, "recipe": "everything-in-bf16", "overrides": {}}],
        {},
        {},
        ("site-name-clash", "as attention bf16, head bf16, mlp bf16 in ", "of third, or remove spark3"),
    ),
    "one name for two models of one Spark that serve at once": (
        [
            DEMO,
            renamed(
                {**REPLICA, "name": "far-pair", "recipe": "gemma-4-31b-fp8-tp2", "hosts": ["spark2", "spark1"]},
                served_name="model",
            ),
        ],
        {},
        {},
        ("site-name-clash", "in deployment demo and ", "of far-pair, or remove spark2"),
    ),
    "a Spark that is not there": (
        [DEMO],
        {"site": {**SITE, "spark9": "192.168.1.29"}},
        {},
        ("site-member", "vllm_edge.site names spark9", "add spark9 to the group sparks"),
    ),
    "an open Spark": (
        [DEMO, REPLICA],
        {},
        {"spark2": OtherEdge({"open": True}, "/site/edge")},
        ("site-member", "spark2, which is open", "set vllm_edge: {open: false} for spark2"),
    ),
    "a Spark without a setting": (
        [DEMO, REPLICA],
        {},
        {"spark2": OtherEdge({}, "/site/edge")},
        (
            "site-member",
            "vllm_edge.site, site_port or switch_by_request of spark2 is not that of spark1",
            "once for the group sparks",
        ),
    ),
    "a Spark of another site": (
        [DEMO, REPLICA],
        {},
        {"spark2": OtherEdge({"open": False}, "/site/edge")},
        (
            "site-member",
            "vllm_edge.site, site_port or switch_by_request of spark2 is not that of spark1",
            "once for the group sparks",
        ),
    ),
    "two authorities": (
        [DEMO, REPLICA],
        {},
        {"spark2": OtherEdge(SETTINGS, "/elsewhere")},
        ("site-two-authorities", "is /site/edge for spark1 and /elsewhere for spark2", "vllm_edge_authority of spark2"),
    ),
    "the port of a deployment": (
        [DEMO],
        {"site_port": 8000},
        {},
        ("site-port", "vllm_edge.site_port is 8000, as that of deployment demo", "to another port"),
    ),
    "the port of the metrics": (
        [DEMO],
        {"site_port": 9464, "metrics_from": ["10.0.0.5"]},
        {},
        ("site-port", "as that of vllm_edge.metrics_port", "to another port"),
    ),
    "a port of the ranks": ([DEMO], {"site_port": 25001}, {}, ("site-port", "as that of the ranks", "another port")),
    "a deployment that no other Spark reaches": (
        [DEMO, {**REPLICA, "bind": "127.0.0.1"}],
        {},
        {},
        ("site-member", "deployment replica of spark2 has bind 127.0.0.1", "remove bind of replica"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_site_that_cannot_have_one_address_is_refused(name: str) -> None:
    deployments, more, others, (id_, what, fix) = REFUSED[name]
    settings = {**SETTINGS, **more}
    # Other Sparks have the same settings unless the case says something else.
    found = refusals(deployments, settings, others)
    assert [one[0] for one in found] == [id_]
    assert what in found[0][1]
    assert fix in found[0][2]


def test_deployments_that_share_a_spark_may_share_a_name() -> None:
    small = renamed({**DEMO, "name": "small", "recipe": WEIGHTS, "active": False}, served_name="model")
    assert groups(edge_of([DEMO, small, THIRD], SETTINGS))["model"] == (["demo", "small"], [])


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"site": {}}, "vllm_edge.site: {} — expected: at least 2"),
        ({"site": {"spark1": "10.0.0.1"}}, "at least 2"),
        ({"site": {"spark1": "a.local", "spark2": "10.0.0.2"}}, 'site.spark1: "a.local" — expected: an IPv4 address'),
        ({"site": {"spark1": "127.0.0.1", "spark2": "10.0.0.2"}}, "vllm_edge.site.spark1: 127.0.0.1"),
        ({"site": {"spark1": "10.0.0.2", "spark2": "10.0.0.2"}}, "vllm_edge.site.spark2: 10.0.0.2, as spark1 has"),
        ({"site": ["spark1", "spark2"]}, "vllm_edge.site"),
        ({"site": SITE, "open": True}, "vllm_edge.site: it names Sparks, and open is true"),
        ({"site": SITE, "tls": "off"}, "vllm_edge.site: it names Sparks, and tls is off"),
        ({"site_port": 80}, "vllm_edge.site_port: 80 — expected: at least 1024"),
    ],
)  # fmt: skip
def test_a_faulty_setting_is_named(more: dict[str, Any], fault: str) -> None:
    with pytest.raises(RefusedError) as refused:
        edge.parse({"open": False, **more})
    assert any(fault in str(refusal) for refusal in refused.value.refusals), str(refused.value)


def arguments(host: str, settings: object) -> dict[str, Any]:
    return {
        "deployments": [DEMO, REPLICA],
        "host": host,
        "sparks": ["spark1", "spark2"],
        "limit": ["spark1", "spark2"],
        "recipe_folders": [str(folder) for folder in RECIPE_FOLDERS],
        "lock_file": "none.yml",
        "secrets": {"HF_TOKEN": "x"},
        "accepted": [],
        "site": {"hub_dir": "/hub", "cache_dir": "/cache", "pip_index": ""},
        "edge": settings,
    }


def test_the_action_reads_the_edges_of_the_other_sparks_from_their_variables() -> None:
    settings = {"open": False, "site": {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}}
    run = FakeRun(hostvars={"spark1": {"vllm_edge": settings}, "spark2": {"vllm_edge": settings}})
    spec = run.act("vllm_spec", **arguments("spark1", settings))["spec"]
    assert [one["host"] for one in spec["edge"]["neighbours"]] == ["spark2"]
    run.hostvars["spark2"]["vllm_edge_authority"] = "/elsewhere"
    with pytest.raises(Exception, match="vllm_edge_authority is not set for spark1 and /elsewhere for spark2"):
        run.act("vllm_spec", **arguments("spark1", settings))
    del run.hostvars["spark2"]["vllm_edge"]
    with pytest.raises(Exception, match="switch_by_request of spark2 is not that of spark1"):
        run.act("vllm_spec", **arguments("spark1", settings))
    assert run.act("vllm_spec", **arguments("spark1", {"open": False}))["spec"]["edge"]["neighbours"] == ()
