"""Build the launch of each rank of a recipe, argv and environment, with the code of the plan."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.deploy import launch, ranks
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import hub_cache
from vllm_spark.sizing import reference_spark

MODELS = yaml.safe_load((Path(__file__).parent / "models.yml").read_text(encoding="utf-8"))


def of_recipe(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a launch for each rank, in the format of check_argv.py. Missing pins get invented values. The refusals of
    the plan do not apply: a broken copy must reach the engine."""
    recipe = pinned(document)
    hosts = reference_spark.HOSTS[: recipe["topology"]["nodes"]]
    placed = Deployment(name=recipe["name"], recipe=recipe["name"], hosts=hosts)
    digest = f"sha256:{'0' * 64}"
    specs = {host: Spec(host, rank, placed, recipe, recipe_sha256="", digest=digest) for rank, host in enumerate(hosts)}
    joined = ranks.join(specs, {host: {"fabric": reference_spark.fabric(host), "images": {}} for host in hosts})
    return [_of_rank(joined[host]) for host in hosts]


def _of_rank(spec: Spec) -> dict[str, Any]:
    words = [word for group in launch.container_command(spec) for word in group]
    secrets = dict.fromkeys(spec.recipe.get("secrets", []), "secret")
    hub = hub_cache.HUB_IN_CONTAINER
    return {
        "id": f"{spec.recipe['name']} on {spec.host}",
        # On the head, a shell starts Ray before the engine. The worker's container runs only Ray.
        "argv": words[words.index("serve") :] if "serve" in words else None,
        "env": {**launch.environment(spec), **secrets},
        "models": {hub_cache.snapshot(hub, source): described(source) for source in sources(spec.recipe)},
    }


def sources(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the model, and the drafter if the recipe has one."""
    return [document[role] for role in ("model", "drafter") if role in document]


def described(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the class of a model as in its config.json; empty if models.yml does not contain the model."""
    for known in MODELS:
        if re.search(known["pattern"], source["repository"], re.IGNORECASE):
            return {"model_type": known["model_type"], "architectures": known["architectures"]}
    return {}


def pinned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe with invented values for commits and checksums that `lock` would fill in. The parts for a
    derived image are removed, because they do not change an argument."""
    recipe = copy.deepcopy(dict(document))
    for source in sources(recipe):
        source.setdefault("revision", "0" * 40)
    for mount in recipe.get("mounts", []):
        mount.setdefault("sha256", "0" * 64)
    recipe["image"].pop("derive", None)
    recipe.pop("patches", None)
    return recipe
