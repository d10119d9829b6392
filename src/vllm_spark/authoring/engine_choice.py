"""The engine and image of a new recipe: the newest pinned one of the catalogue that a family permits. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.engine_version import numbers
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import loader
from vllm_spark.recipe.conditions import version_matches

NO_ENGINE = register("no-engine", runbook="recipe-new")

# The image of vLLM's releases.
RELEASES = "^vllm/vllm-openai$"
# What a recipe takes over with the image: runtime and platforms belong to the host that the image is for.
OF_A_SITE = ("image", "engine", "runtime", "memory")


def choose(name: str, family: Document, catalogue: Iterable[Document]) -> dict[str, Any]:
    """Return `image` and `engine` for a recipe. Raises RefusedError if no image of the catalogue is new enough."""
    engine = family["engine"]
    images = engine.get("image", RELEASES)
    # A recipe without a forecast is not in the catalogue of a forecast, and its image may be the only one of a family.
    offered = (loader.load(one).document for one in loader.names([paths.RECIPES])) if "image" in engine else catalogue
    pinned = [one for one in offered if "digest" in one["image"] and "derive" not in one["image"]]
    pinned = [one for one in pinned if re.search(images, one["image"]["repository"])]
    usable = [one for one in pinned if "patches" not in one and version_matches(engine, one["engine"]["version"])]
    if not usable:
        raise RefusedError([_no_engine(name, family, pinned)])
    best = max(usable, key=lambda one: numbers(one["engine"]["version"]))
    return {"image": dict(best["image"]), "engine": dict(best["engine"])}


def _no_engine(name: str, family: Document, pinned: Iterable[Document]) -> Refusal:
    versions = sorted({one["engine"]["version"] for one in pinned}, key=numbers)
    engine = family["engine"]
    pins = ", ".join(versions) or f"no image {engine.get('image', RELEASES)}"
    range_ = f"since {engine['since']}" + (f" and below {engine['below']}" if "below" in engine else "")
    return NO_ENGINE(
        what=f"{name} needs vLLM {range_} (family {family['name']}); the catalogue pins {pins}",
        expected="an image whose engine knows the model",
        fix="--like RECIPE names a recipe of yours whose image and engine the new one takes over.",
    )
