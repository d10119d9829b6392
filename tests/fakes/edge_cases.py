"""Specs of edges for tests: one Spark with two models, the head of a pair, own files, no TLS, metrics, many names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from project_files import RECIPE_FOLDERS
from vllm_spark.inventory import intent, spec
from vllm_spark.inventory.edge_backends import OtherEdge
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec

SPARKS = ("spark1", "spark2", "spark3")
DEMO = {"name": "demo", "recipe": "everything", "hosts": ["spark1"]}
OTHER = {
    "name": "other",
    "recipe": "everything",
    "hosts": ["spark1"],
    "active": False,
    "overrides": {"model": {"served_name": "other-model", "aliases": ["o/1"]}, "args": {"max-num-seqs": 4}},
}
PAIR = {"name": "pair", "recipe": "two-sparks", "hosts": ["spark1", "spark2"], "bind": "192.168.1.20", "port": 8443}
LONE_WORKER = {**PAIR, "name": "far", "hosts": ["spark2", "spark1"], "active": False}

# A site: `demo` and its replica on the second Spark, which has a model of its own beside it; the third has another.
REPLICA = {**DEMO, "name": "replica", "hosts": ["spark2"]}
SPARE = {**OTHER, "name": "spare", "hosts": ["spark2"], "overrides": {"model": {"served_name": "spare-model"}}}
THIRD = {
    **DEMO,
    "name": "third",
    "hosts": ["spark3"],
    "overrides": {"model": {"served_name": "third-1.5", "aliases": ["t"]}},
}
SITE = {"spark1": "192.168.1.20", "spark2": "192.168.1.21", "spark3": "192.168.1.22"}

# A pair whose worker is the first Spark, on another port.
FAR_PAIR = {**PAIR, "name": "far-pair", "hosts": ["spark2", "spark1"], "bind": "0.0.0.0"}  # noqa: S104

# Servers of other roles beside the chat of `demo`, and a reranker on another Spark.
VECTORS = {"name": "vectors", "recipe": "qwen3-embedding-0.6b", "hosts": ["spark1"], "active": False}
SORTER = {"name": "sorter", "recipe": "qwen3-reranker-0.6b", "hosts": ["spark1"], "active": False}
FAR_SORTER = {**SORTER, "name": "far-sorter", "hosts": ["spark3"], "active": True}

# Name of a golden file -> (vllm_deployments, vllm_edge, the address of spark1).
GOLDEN: Mapping[str, tuple[Sequence[Mapping[str, Any]], Mapping[str, Any], str]] = {
    "one-spark": ([DEMO, OTHER, LONE_WORKER], {"open": False}, "192.168.1.20"),
    "head-of-a-pair": ([PAIR], {"open": False, "names": ["models.home"], "limits": {"streams": 8}}, "spark-1a2b.local"),
    "site": ([DEMO, OTHER, REPLICA, SPARE, THIRD], {"open": False, "site": SITE}, "192.168.1.20"),
    "web-pages": (
        [DEMO],
        {"open": False, "origins": ["https://chat.home:3000", "http://[fd00::5]"]},
        "192.168.1.20",
    ),
    "switch-by-request": (
        [DEMO, OTHER, REPLICA, {**SPARE, "active": False}],
        {"open": False, "site": SITE, "switch_by_request": True},
        "192.168.1.20",
    ),
    "front": ([OTHER, REPLICA, THIRD], {"open": False, "site": SITE, "switch_by_request": True}, "192.168.1.20"),
    "front-of-a-worker": ([FAR_PAIR, THIRD], {"open": False, "site": SITE}, "192.168.1.20"),
    "fair": (
        [DEMO, OTHER, REPLICA, SPARE, THIRD],
        {"open": False, "site": SITE, "fair": True, "limits": {"batch_share": 25}},
        "192.168.1.20",
    ),
    "metrics-server": (
        [DEMO, OTHER, REPLICA],
        {"open": False, "site": SITE, "metrics_from": ["192.168.1.20"], "metrics_server": "spark1"},
        "192.168.1.20",
    ),
    "roles": ([DEMO, VECTORS, SORTER], {"open": False}, "192.168.1.20"),
    "roles-of-a-site": ([DEMO, VECTORS, REPLICA, FAR_SORTER], {"open": False, "site": SITE}, "192.168.1.20"),
    "own-files": (
        [DEMO],
        {
            "open": False,
            "tls": "files",
            "certificate": "chain.pem",
            "private_key": "key.pem",
            "names": ["ai.example.org"],
        },
        "192.168.1.20",
    ),
    "tls-off-with-metrics": (
        [DEMO],
        {
            "open": False,
            "tls": "off",
            "allow_from": ["10.0.0.0/8"],
            "metrics_from": ["10.0.0.5"],
            "limits": {"body_mib": 1, "connections": 64},
        },
        "10.0.0.20",
    ),
}


def inventory(
    deployments: Sequence[Mapping[str, Any]], edge: Mapping[str, Any], others: Mapping[str, OtherEdge] = {}
) -> spec.Inventory:
    """Return an inventory. `others`: edges of which it says something else."""
    return spec.Inventory(
        deployments=list(deployments),
        sparks=SPARKS,
        limit=SPARKS,
        recipe_folders=RECIPE_FOLDERS,
        secrets={"HF_TOKEN": True},
        edge=edge,
        edges={**dict.fromkeys(SPARKS, OtherEdge(edge, "/site/edge")), **others},
    )


def resolved(
    deployments: Sequence[Mapping[str, Any]],
    edge: Mapping[str, Any],
    host: str = "spark1",
    others: Mapping[str, OtherEdge] = {},
) -> Spec:
    """Return the spec of a Spark. `others`: edges of which the inventory says something else."""
    found = intent_of(deployments, edge, host, others).rank
    assert found is not None
    return found


def edge_of(
    deployments: Sequence[Mapping[str, Any]],
    edge: Mapping[str, Any],
    host: str = "spark1",
    others: Mapping[str, OtherEdge] = {},
) -> Edge:
    """Return the edge of a Spark, with or without an active deployment. `others` as in `resolved`."""
    own = intent_of(deployments, edge, host, others).edge
    assert own is not None
    return own


def intent_of(
    deployments: Sequence[Mapping[str, Any]],
    edge: Mapping[str, Any],
    host: str = "spark1",
    others: Mapping[str, OtherEdge] = {},
) -> HostIntent:
    """Return the intent of a Spark. `others` as in `resolved`."""
    return intent.resolve(inventory(deployments, edge, others), host)
