"""Specs of edges for tests: one Spark with two models, the head of a pair, own files, no TLS, metrics, many names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from project_files import RECIPE_FOLDERS
from vllm_spark.inventory import spec
from vllm_spark.inventory.spec import Spec

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

# Name of a golden file -> (vllm_deployments, vllm_edge, the address of spark1).
GOLDEN: Mapping[str, tuple[Sequence[Mapping[str, Any]], Mapping[str, Any], str]] = {
    "one-spark": ([DEMO, OTHER, LONE_WORKER], {"open": False}, "192.168.1.20"),
    "head-of-a-pair": ([PAIR], {"open": False, "names": ["models.home"], "limits": {"streams": 8}}, "spark-1a2b.local"),
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


def resolved(deployments: Sequence[Mapping[str, Any]], edge: Mapping[str, Any]) -> Spec:
    """Return the spec of spark1."""
    inventory = spec.Inventory(
        deployments=list(deployments),
        sparks=("spark1", "spark2"),
        limit=("spark1", "spark2"),
        recipe_folders=RECIPE_FOLDERS,
        secrets={"HF_TOKEN": True},
        edge=edge,
    )
    found = spec.resolve(inventory, "spark1")
    assert found is not None
    return found
