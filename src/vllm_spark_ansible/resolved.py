"""What spark_precheck has resolved for a host, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.inventory.front import Front


def front_of(variables: Mapping[str, Any]) -> Front | None:
    """Return the edge of a host without an active deployment; None if it has none. `variables` are the host's."""
    document = (variables.get("spark_precheck_resolved") or {}).get("edge")
    return Front.from_json(document) if document else None
