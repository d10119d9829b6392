"""The key of a pair's link: kept while every host has the same one for root alone, drawn again otherwise. Pure.

The controller never reads a key from a host. It compares the checksums that are among the facts of the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vllm_spark.inventory.spec import Spec
from vllm_spark.node.host_layout import LINK_KEY

MODE = "0600"


def path(spec: Spec) -> str:
    """Return the path of the key on each host; empty for a deployment on one host."""
    return f"{spec.config_dir}/{LINK_KEY}" if len(spec.deployment.hosts) > 1 else ""


def is_renewed(spec: Spec, files: Sequence[Mapping[str, list[str]]]) -> bool:
    """Return True if the hosts of a deployment need a new key. `files` are those of each host. A key that others could
    read is replaced as well."""
    if not path(spec):
        return False
    keys = [tuple(of_host.get(path(spec), ())) for of_host in files]
    return len(set(keys)) > 1 or not keys[0] or keys[0][1] != MODE
