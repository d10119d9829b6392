"""The refusals that the package registers."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import vllm_spark
from vllm_spark.core.refusal import REGISTRY


@cache
def registered() -> dict[str, str]:
    """Return id -> runbook of every kind that a module of the package registers at import."""
    for module in pkgutil.walk_packages(vllm_spark.__path__, "vllm_spark."):
        if not module.name.startswith("vllm_spark.node."):  # programs of the host, which register nothing
            importlib.import_module(module.name)
    return {kind.id: kind.runbook for kind in REGISTRY.values()}
