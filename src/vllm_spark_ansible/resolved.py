"""What spark_precheck has resolved for a host, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark.inventory.intent import HostIntent
from vllm_spark_ansible.action import SparkAction
from vllm_spark_ansible.results import RESOLVED, SPEC


def intent_of(host: str, variables: Mapping[str, Any]) -> HostIntent | None:
    """Return the intent of a host; None if its inventory is refused. `variables` are the host's."""
    document = RESOLVED.of(variables) if SPEC.known(variables) else None
    return HostIntent.from_json(host, document) if document else None


def intents_of(action: SparkAction, host: str) -> dict[str, HostIntent]:
    """Return the intents of the hosts of a host's deployment in their order, or that of the host alone if no deployment
    is active there. Raises RefusedError if the inventory of one is refused."""
    spec = action.results(SPEC, [host], asks=host)[host]
    known = action.results(SPEC, spec["deployment"]["hosts"] if spec else [host], asks=host)
    return {name: HostIntent.from_json(name, one) for name, one in action.results(RESOLVED, known).items()}
