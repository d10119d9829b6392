"""The key of a pair's link: kept while every host has the same one for root alone, drawn again otherwise. Pure.

The controller never reads a key from a host. It compares the checksums that are among the facts of the files.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_spark.core.types import Facts
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.host_layout import LINK_KEY

MODE = "0600"


def path(spec: Spec) -> str:
    """Return the path of the key on each host; empty for a deployment on one host."""
    return f"{spec.config_dir}/{LINK_KEY}" if len(spec.deployment.hosts) > 1 else ""


def is_renewed(spec: Spec, hosts: Sequence[Facts]) -> bool:
    """Return True if the hosts of a deployment, whose facts these are, need a new key. One that others could read is
    replaced as well."""
    if not path(spec):
        return False
    keys = [tuple(facts.get("files", {}).get(path(spec), ())) for facts in hosts]
    return len(set(keys)) > 1 or not keys[0] or keys[0][1] != MODE
