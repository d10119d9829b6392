"""The launches of a recipe: argv and variables of each rank, computed by the code of the plan."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vllm_spark.core import container_layout, paths
from vllm_spark.deploy import launch, ranks
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.inventory.edge import OPEN, EdgeSettings
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import hub_cache, published_image
from vllm_spark.sizing import reference_spark

MODELS = yaml.load((Path(__file__).parent / "models.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)


def of_recipe(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return two launches for each rank, as check_argv.py reads them: of an open engine and of a closed one. Pins that
    `lock` must still resolve are invented. The refusals of the plan are not checked: a broken copy must reach the
    engine."""
    recipe = pinned(document)
    hosts = reference_spark.HOSTS[: recipe["topology"]["nodes"]]
    placed = Deployment(name=recipe["name"], recipe=recipe["name"], hosts=hosts)
    digest = f"sha256:{'0' * 64}"
    specs = {
        host: Spec(host, rank, placed, recipe, recipe_sha256="", digest=digest, edge=Edge(host, OPEN))
        for rank, host in enumerate(hosts)
    }
    facts = {host: {"fabric": reference_spark.fabric(host), "images": {}} for host in hosts}
    closed = {host: replace(spec, edge=Edge(host, EdgeSettings(open=False))) for host, spec in specs.items()}
    return [_of_rank(spec) for each in (specs, closed) for spec in ranks.join(each, facts).values()]


def _of_rank(spec: Spec) -> dict[str, Any]:
    # The engine opens a chat template while it reads its words, so a file of a mount is named where it is here.
    here = {one["target"]: str(paths.RECIPES / one["path"]) for one in spec.recipe.get("mounts", []) if "path" in one}
    words = [here.get(word, word) for group in launch.container_command(spec) for word in group]
    secrets = dict.fromkeys(spec.recipe.get("secrets", []), "secret")
    hub = container_layout.HUB_IN_CONTAINER
    return {
        "id": f"{spec.recipe['name']} on {spec.host}{'' if spec.open else ', closed'}",
        # A shell starts Ray before the head's engine; the worker's container runs Ray alone.
        "argv": words[words.index("serve") :] if "serve" in words else None,
        "env": {**launch.environment(spec), **secrets},
        "models": {hub_cache.snapshot(hub, source): described(source) for source in sources(spec.recipe)},
    }


def sources(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the model and, if the recipe has one, the drafter."""
    return [document[role] for role in ("model", "drafter") if role in document]


def described(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model class fields of a model's config.json; empty if models.yml does not know the model."""
    for known in MODELS:
        if re.search(known["pattern"], source["repository"], re.IGNORECASE):
            return {key: value for key, value in known.items() if key != "pattern"}
    return {}


def own_flags(recipe: Mapping[str, Any]) -> list[str]:
    """Return the flags of a published image that its release does not have."""
    flags: list[str] = recipe["image"]["published"].get("flags", [])
    return flags


def pinned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with invented values where it leaves commits and checksums to `lock`, without the additions of a
    derived image, which change no argument, and without the variables of a published image, which no release knows."""
    recipe = copy.deepcopy(dict(document))
    for source in sources(recipe):
        source.setdefault("revision", "0" * 40)
    for mount in recipe.get("mounts", []):
        mount.setdefault("sha256", "0" * 64)
    recipe["image"].pop("derive", None)
    recipe.pop("patches", None)
    if published_image.is_published(recipe):
        recipe.pop("env", None)
        recipe["args"] = {name: value for name, value in recipe["args"].items() if name not in own_flags(recipe)}
    return recipe
