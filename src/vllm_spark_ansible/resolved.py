"""What spark_precheck has resolved for a host, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.inventory.front import EdgeOwner, Front
from vllm_spark.inventory.spec import Spec


def front_of(variables: Mapping[str, Any]) -> Front | None:
    """Return the edge of a host without an active deployment; None if it has none. `variables` are the host's."""
    document = (variables.get("spark_precheck_resolved") or {}).get("edge")
    return Front.from_json(document) if document else None


def edge_owner_of(variables: Mapping[str, Any]) -> EdgeOwner | None:
    """Return a host as its edge sees it: its spec, or its front if no deployment is active there; None without both."""
    spec = (variables.get("spark_precheck_resolved") or {}).get("spec")
    return Spec.from_json(spec) if spec else front_of(variables)
