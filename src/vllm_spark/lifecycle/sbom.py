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
from vllm_spark.recipe import image_name, loader, lockfile, wheels

NOTHING_RUNS = register("sbom-nothing-runs", runbook="inventory-refused")

Component = dict[str, Any]

# The type of a component -> its name in the summary.
NOUNS = {"library": "packages", "container": "images", "machine-learning-model": "models", "file": "files"}


# NAME==VERSION ; MARKER \, and on the lines that follow a hash for each file of that version.
_PIN = re.compile(
    r"(?m)^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\\n]+)([^\n]*)\n((?: +--hash=sha256:[0-9a-f]{64}[ \\]*\n)+)"
)


@dataclass(frozen=True, slots=True)
class Contents:
    """Components by bom-ref, in the order of the document, and a line per deployment that is left out."""

    components: Mapping[str, Component]
    notes: tuple[str, ...]


def contents(site: Document, requirements: str) -> Contents:
    """Return the components of a site. `site`: `deployments` (vllm_deployments), `limit` (the hosts of the run),
    `recipe_folders` and `lock_file`. `requirements` is the text of requirements.lock.

    Raises RefusedError if no deployment is within the limit, and with everything that an active one leaves open. An
    inactive deployment that is not locked is left out.
    """
    placed = [one for one in deployment.parse(site["deployments"]) if set(one.hosts) & set(site["limit"])]
    if not placed:
        raise NOTHING_RUNS.error(
            what=f"no deployment names {', '.join(site['limit'])}",
            expected="a deployment whose image and model the document lists",
            fix="add one to vllm_deployments in the inventory.",
        )
    lock = lockfile.read(Path(site["lock_file"]))
    folders = [Path(folder) for folder in site["recipe_folders"]]
    found = {package["bom-ref"]: package for package in packages(requirements)}
    refusals: list[Refusal] = []
    notes: list[str] = []
    for one in placed:
        wanted = placement.overridden(one, loader.load(one.recipe, folders))
        recipe = lockfile.pinned(wanted, lock)
        if missing := list(lockfile.refusals(recipe, lock)):
            if one.active:
                refusals += missing
            else:
                notes.append(f"inactive deployment {one.name} is left out: recipe {one.recipe} is not locked")
            continue
        for component in _of_recipe(recipe, lockfile.manifests(wanted, recipe, lock)):
            properties = found.setdefault(component["bom-ref"], component).setdefault("properties", [])
            state = "active" if one.active else "inactive"
            properties.append(_property("deployment", f"{one.name} on {', '.join(one.hosts)}, {state}"))
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


def packages(requirements: str) -> Iterator[Component]:
    """Yield a component per package. One version has several files, of which pip installs one; each is a hash."""
    for name, version, rest, hashes in _PIN.findall(requirements):
        files = [_hash(sha256) for sha256 in re.findall("sha256:([0-9a-f]{64})", hashes)]
        url = f"https://pypi.org/simple/{_normal(name)}/"
        more = {"externalReferences": [{"type": "distribution", "url": url, "hashes": files}]}
        marker = rest.strip(" \\;").strip()
        yield _component("library", name, _pypi(name, version), version, **more, **_properties("only-if", marker))


def _of_recipe(recipe: Document, manifests: Mapping[str, str]) -> Iterator[Component]:
    """Yield the image of a pinned recipe, what is added to it or mounted into it, the model and the drafter.
    `manifests`: OWNER/NAME@COMMIT -> sha256 of the list of its files."""
    image = recipe["image"]
    host, path = image_name.split(image["repository"])
    digest, derive = image["digest"], image.get("derive", {})
    options = f"repository_url={quote(f'{host}/{path}', safe='/')}&tag={quote(image['tag'], safe='')}"
    purl = f"pkg:oci/{quote(path.rpartition('/')[2])}@{quote(digest, safe='')}?{options}"
    yield _component("container", image["repository"], purl, digest, hashes=[_hash(digest.removeprefix("sha256:"))])
    pins = {wheels.normal(pin) for pin in derive.get("pip", ())}
    for line in derive.get("wheels", ()):
        pin, *hashes = line.split(" --hash=sha256:")
        name, _, version = pin.partition("==")
        purl = _pypi(name, version)
        only_if = _properties("only-if", "" if pin in pins else "the base image lacks it")
        added = _component("library", name, purl, version, hashes=[_hash(one) for one in hashes], **only_if)
        yield {**added, "bom-ref": f"image:{purl}"}
    files = (*([derive["overlay"]] if "overlay" in derive else []), *derive.get("files", ()))
    for file in (*files, *recipe.get("patches", ()), *recipe.get("mounts", ())):
        sha256, name = file["sha256"], file.get("url") or file["path"]
        yield {"type": "file", "bom-ref": f"sha256:{sha256}", "name": name, "hashes": [_hash(sha256)]}
    for source in filter(None, (recipe["model"], recipe.get("drafter"))):
        name, commit = source["repository"], source["revision"]
        manifest = _properties("manifest-sha256", manifests.get(f"{name}@{commit}", ""))
        yield _component("machine-learning-model", name, f"pkg:huggingface/{quote(name)}@{commit}", commit, **manifest)


def _component(kind: str, name: str, purl: str, version: str, **more: Any) -> Component:
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}


def _pypi(name: str, version: str) -> str:
    return f"pkg:pypi/{_normal(name)}@{version}"


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def _hash(sha256: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": sha256}


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"vllm-spark:{name}", "value": value}


def _properties(name: str, value: str) -> dict[str, list[dict[str, str]]]:
    return {"properties": [_property(name, value)]} if value else {}
