"""The bill of materials of a site: CycloneDX 1.6 of the controller's packages, the images and the models. Reads the
recipes and the lock file, and asks nobody.

https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.inventory import deployment, placement
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.lifecycle.sbom_packages import packages
from vllm_spark.recipe import image_name, loader, lockfile

NOTHING_RUNS = register("sbom-nothing-runs", runbook="inventory-refused")

Component = dict[str, Any]

# The type of a component -> its name in the summary.
NOUNS = {"library": "packages", "container": "images", "machine-learning-model": "models", "file": "files"}


@dataclass(frozen=True, slots=True)
class SbomRequest:
    """What a site runs: `vllm_deployments` as it is, the hosts of the run, and where recipes and pins are."""

    deployments: object
    limit: tuple[str, ...]
    recipe_folders: tuple[Path, ...]
    lock_file: Path

    @classmethod
    def from_args(cls, args: Document) -> SbomRequest:
        """Build from the arguments of the action plugin."""
        folders = tuple(Path(folder) for folder in args["recipe_folders"])
        return cls(args["deployments"], tuple(args["limit"]), folders, Path(args["lock_file"]))


@dataclass(frozen=True, slots=True)
class Contents:
    """Components by bom-ref, in the order of the document, and a line per deployment that is left out."""

    components: Mapping[str, Component]
    notes: tuple[str, ...]


def contents(request: SbomRequest, requirements: str) -> Contents:
    """Return the components of a site. `requirements` is the text of requirements.lock.

    Raises RefusedError if no deployment is within the limit, and with everything that an active one leaves open. An
    inactive deployment that is not locked is left out.
    """
    placed = [one for one in deployment.parse(request.deployments) if set(one.hosts) & set(request.limit)]
    if not placed:
        raise NOTHING_RUNS.error(
            what=f"no deployment names {', '.join(request.limit)}",
            expected="a deployment whose image and model the document lists",
            fix="add one to vllm_deployments in the inventory.",
        )
    lock = lockfile.read(request.lock_file)
    found: dict[str, Component] = {}
    for package in packages(requirements):
        found[package["bom-ref"]] = package
    refusals: list[Refusal] = []
    notes: list[str] = []
    for one in placed:
        wanted = placement.overridden(one, loader.load(one.recipe, request.recipe_folders))
        recipe = lockfile.pinned(wanted, lock)
        if missing := list(lockfile.refusals(recipe, lock)):
            if one.active:
                refusals += missing
            else:
                notes.append(f"inactive deployment {one.name} is left out: recipe {one.recipe} is not locked")
            continue
        for component in _of_recipe(recipe, lockfile.manifests(wanted, recipe, lock)):
            kept = found.setdefault(component["bom-ref"], component)
            _add_deployment(kept, one)
    if refusals:
        raise RefusedError(refusals)
    return Contents(found, tuple(notes))


def document(components: Mapping[str, Component], toolkit: str, at: datetime) -> dict[str, Any]:
    """Return the CycloneDX document. Its serial number is a hash of the components: equal sites have the same one."""
    listed = list(components.values())
    root = {"type": "application", "bom-ref": "vllm-spark", "name": "vllm-spark", "version": toolkit}
    digest = json.dumps([root, listed], sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"timestamp": f"{at:%Y-%m-%dT%H:%M:%SZ}", "component": root},
        "components": listed,
        "dependencies": [{"ref": "vllm-spark", "dependsOn": list(components)}],
    }


def summary(components: Mapping[str, Component]) -> str:
    """Return the number of components by kind."""
    counts = Counter(component["type"] for component in components.values())
    return ", ".join(f"{counts[kind]} {noun}" for kind, noun in NOUNS.items() if counts[kind])


def _of_recipe(recipe: Document, manifests: Mapping[str, str]) -> Iterator[Component]:
    """Yield the image of a pinned recipe, what is added to it or mounted into it, the model and the drafter.
    `manifests`: OWNER/NAME@COMMIT -> sha256 of the list of its files."""
    yield _image(recipe["image"])
    derive = recipe["image"].get("derive", {})
    for pin in derive.get("pip", ()):
        name, _, version = pin.partition("==")
        purl = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
        yield {"type": "library", "bom-ref": f"image:{purl}", "name": name, "version": version, "purl": purl}
    for file in (*([derive["overlay"]] if "overlay" in derive else []), *derive.get("files", ())):
        yield _file(file["url"], file["sha256"])
    for file in (*recipe.get("patches", ()), *recipe.get("mounts", ())):
        yield _file(file["path"], file["sha256"])
    for source in (recipe["model"], recipe.get("drafter")):
        if source:
            yield _model(source, manifests.get(f"{source['repository']}@{source['revision']}", ""))


def _image(image: Document) -> Component:
    """Return an image by the digest of its manifest."""
    host, path = image_name.split(image["repository"])
    digest = image["digest"]
    options = f"repository_url={quote(f'{host}/{path}', safe='/')}&tag={quote(image['tag'], safe='')}"
    purl = f"pkg:oci/{quote(path.rpartition('/')[2])}@{quote(digest, safe='')}?{options}"
    return {
        "type": "container",
        "bom-ref": purl,
        "name": image["repository"],
        "version": digest,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }


def _model(source: Document, manifest: str) -> Component:
    """Return a model by its commit."""
    purl = f"pkg:huggingface/{quote(source['repository'])}@{source['revision']}"
    found: Component = {
        "type": "machine-learning-model",
        "bom-ref": purl,
        "name": source["repository"],
        "version": source["revision"],
        "purl": purl,
    }
    return {**found, "properties": [{"name": "vllm-spark:manifest-sha256", "value": manifest}]} if manifest else found


def _file(name: str, sha256: str) -> Component:
    return {
        "type": "file",
        "bom-ref": f"sha256:{sha256}",
        "name": name,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }


def _add_deployment(component: Component, one: Deployment) -> None:
    """Record which deployment uses a component, and where."""
    state = "active" if one.active else "inactive"
    value = f"{one.name} on {', '.join(one.hosts)}, {state}"
    component.setdefault("properties", []).append({"name": "vllm-spark:deployment", "value": value})
