"""The specs of every recipe of the catalogue, placed on Sparks that have its models."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fakes.cases import hosts_of, intents, resolved
from fakes.invented_pins import lock_of
from vllm_spark.core import paths
from vllm_spark.core.types import Facts
from vllm_spark.deploy import checks, plan, ranks
from vllm_spark.inventory.spec import Spec, mount_source
from vllm_spark.recipe import loader
from vllm_spark.sizing import reference_spark

NAMES = list(loader.names([paths.RECIPES]))
HOSTS = list(reference_spark.HOSTS)


def case_of(name: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a case (see test_cases.py): the recipe placed as `demo` on as many Sparks as it is for."""
    document = loader.load(name).document
    hosts = HOSTS[: document["topology"]["nodes"]]
    pins = lock_of(document)
    return {
        "deployments": [{"name": "demo", "recipe": name, "hosts": hosts, "overrides": dict(overrides or {})}],
        "sparks": hosts,
        "limit": hosts,
        "secrets": {},
        "lock": pins["images"],
        "lock_models": pins["models"],
    }


def planned(name: str, facts: dict[str, Any], folder: Path, overrides: Mapping[str, Any] | None = None) -> list[Spec]:
    """Return the recipe's specs, head first, after a plan for hosts that have its models and mounted files.

    Raises RefusedError if the plan refuses it.
    """
    case = case_of(name, overrides)
    lock = folder / "lock.yml"
    lock.write_text(json.dumps({"images": case["lock"], "models": case["lock_models"]}))
    specs = resolved(case, "spark1", lock)
    head = specs["spark1"]
    mounts = [mount for mount in head.recipe.get("mounts", []) if mount["from"] == "model"]
    present = {
        "paths": dict.fromkeys(checks.model_folders(head), True),
        "checksums": {mount_source(head, mount): mount["sha256"] for mount in mounts},
    }
    hosts: dict[str, Facts] = hosts_of({**case, "facts": present}, specs, copy.deepcopy(facts), folder)
    for host in specs:
        plan.of_host(intents(specs), hosts, host, "test")
    return list(ranks.join(specs, hosts).values())
