"""A folder that carries images, models and the toolkit's packages to a site without internet.

    bundle.json   the contents; written last, so a folder without it is not finished
    images/       an OCI image layout: every blob by its digest
    hub/          a hub cache with a manifest per model
    wheels/       the Python packages of requirements.lock

The machine that runs Ansible writes it and needs no connection to a Spark for that.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import TypedDict

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusalKind, RefusedError, register
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.pull import blob_cache, hub_fetch
from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.files import LinkError, sha256_of, write_json
from vllm_spark.node.pull.job import JobError, JobProgress, reason_of
from vllm_spark.node.pull.model_files import ManifestError, ModelRef
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.node.pull.upstream import Upstream
from vllm_spark.pinning.registry import ADDRESSES
from vllm_spark.transfer import images as transfer_images
from vllm_spark.transfer import jobs
from vllm_spark.transfer.site import PulledModel, models

# The id is shared with the support bundle; the runbook is that of the part that was not written.
IMAGE_NOT_WRITTEN = RefusalKind("bundle-not-written", "image-registry")
PACKAGES_NOT_WRITTEN = RefusalKind("bundle-not-written", "bundle-lacks")
BUNDLE_INCOMPLETE = register("bundle-lacks", runbook="bundle-lacks")

CONTENTS = "bundle.json"
LOG_INTERVAL_S = 5.0
# Prints one line to the operator.
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BundledImage:
    """An image of a bundle."""

    name: str
    host: str
    repository: str
    digest: str
    platforms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """Contents of a bundle: each image and model of all specs once."""

    images: tuple[BundledImage, ...]
    models: tuple[PulledModel, ...]

    @classmethod
    def of(cls, specs: Sequence[Spec]) -> BundleRequest:
        images = (transfer_images.image_of(spec, "") for spec in specs)
        bundled = (
            BundledImage(image.name, image.host, image.repository, image.digest, tuple(spec.platforms))
            for image, spec in zip(images, specs, strict=True)
        )
        return cls(tuple(dict.fromkeys(bundled)), tuple(models(specs)))


@dataclass(frozen=True, slots=True)
class RemoteSources:
    """Sources of a bundle. `registries`: host -> URL of those with another address. `environment`: variables of
    huggingface_hub (HF_ENDPOINT, HF_TOKEN, a proxy). `pip`: options of pip download."""

    registries: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pip: Sequence[str] = ("--requirement", str(paths.ROOT / "requirements.lock"), "setuptools>=80")

    def registry(self, host: str) -> str:
        return self.registries.get(host) or ADDRESSES.get(host) or f"https://{host}"


class BundledImageJson(TypedDict):
    """An image in bundle.json."""

    name: str
    host: str
    repository: str
    digest: str
    platforms: list[str]


class Contents(TypedDict):
    """bundle.json. `wheels`: file name -> sha256."""

    toolkit: str
    images: list[BundledImageJson]
    models: list[ModelRef]
    wheels: dict[str, str]


def is_finished(folder: Path) -> bool:
    return (folder / CONTENTS).is_file()


def write(folder: Path, request: BundleRequest, sources: RemoteSources, toolkit: str, log: Log) -> None:
    """Write a bundle, or continue an interrupted one. Raises RefusedError."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in request.images:
        _write_image(folder / "images", image, sources, log)
    _index(folder / "images", request.images)
    with _environment(sources.environment):
        for model in request.models:
            _write_model(folder / "hub", model, log)
    wheels = _write_wheels(folder / "wheels", sources, log)
    contents: Contents = {
        "toolkit": toolkit,
        "images": [_image_json(image) for image in request.images],
        "models": [model.ref() for model in request.models],
        "wheels": wheels,
    }
    write_json(folder / CONTENTS, contents)


def refusals(folder: Path, request: BundleRequest, log: Log) -> list[Refusal]:
    """Read the whole bundle and return a refusal for each missing or damaged part.

    Nothing is changed, because the bundle may be on a read-only disk.
    """
    faults: list[str] = []
    for image in request.images:
        log(f"reading {image.name}")
        faults += blob_cache.missing_blobs(folder / "images", image.digest, image.platforms)
    for model in request.models:
        log(f"reading {model}" + ("" if model.manifest else ", of which the lock file has no manifest"))
        faults += _model_faults(folder / "hub", model)
    faults += _wheel_faults(folder)
    return [_incomplete(folder, fault) for fault in faults]


def _incomplete(folder: Path, fault: str) -> Refusal:
    return BUNDLE_INCOMPLETE(
        what=f"the bundle {folder}: {fault}",
        expected="every image, model and wheel of these deployments, with its checksum",
        fix=f"where there is internet, remove {folder / CONTENTS} and run the same command: valid parts are kept.",
    )


def _write_image(layout: Path, image: BundledImage, sources: RemoteSources, log: Log) -> None:
    cache = BlobCache(layout, Upstream(sources.registry(image.host), image.host))
    progress = JobProgress()
    progress.enter(image.name.partition("@")[0], 0)
    before = 0
    try:
        with _logged(progress, log):
            for _, size in blob_cache.mirror_image(cache, image.repository, image.digest, image.platforms):
                progress.done += before
                progress.total, before = progress.total + size, size
    except (BlobError, ValueError, KeyError, OSError) as error:
        raise RefusedError([_not_fetched(IMAGE_NOT_WRITTEN, image.name, str(error))]) from error
    if missing := list(blob_cache.missing_blobs(layout, image.digest, image.platforms, read=False)):
        raise RefusedError([_not_fetched(IMAGE_NOT_WRITTEN, image.name, "; ".join(missing))])
    log(f"{image.name} is in the bundle")


def _index(layout: Path, images: Iterable[BundledImage]) -> None:
    cache = BlobCache(layout)
    cache.write_index({image.name: cache.manifest(image.repository, image.digest) for image in images})


def _write_model(hub: Path, model: PulledModel, log: Log) -> None:
    hub.mkdir(parents=True, exist_ok=True)
    progress = JobProgress()
    try:
        with _logged(progress, log):
            hub_fetch.ensure_model(model.source(hub), model.repository, progress)
    except (JobError, ManifestError, LinkError) as error:
        raise RefusedError([jobs.refusal(reason_of(error), f"{model}: {error}")]) from error
    log(f"{model} is in the bundle")


def _write_wheels(folder: Path, sources: RemoteSources, log: Log) -> dict[str, str]:
    """Return file name -> sha256."""
    log("fetching the toolkit's Python packages")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *sources.pip]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603  a constant command
    if done.returncode:
        stderr = " ".join(done.stderr.split())[-300:]
        raise RefusedError([_not_fetched(PACKAGES_NOT_WRITTEN, "the toolkit's Python packages", stderr)])
    return {file.name: sha256_of(file) for file in sorted(folder.iterdir())}


def _model_faults(hub: Path, model: PulledModel) -> Iterator[str]:
    source = model.source(hub)
    try:
        manifest = source.stored_manifest()
        if manifest is None:
            yield f"{model} is missing"
            return
        source.accept(manifest)
    except ManifestError as error:
        yield str(error)
        return
    for entry in manifest.files:
        try:
            if sha256_of(source.open(entry)) != entry.sha256:
                yield f"{entry.path} of {model} differs from its manifest"
        except LinkError as error:
            yield str(error)
        except OSError:
            yield f"{entry.path} of {model} is missing"


def _wheel_faults(folder: Path) -> Iterator[str]:
    contents = read_contents(folder)
    for name, sha256 in contents["wheels"].items():
        file = folder / "wheels" / name
        if not file.is_file():
            yield f"wheels/{name} is missing"
        elif hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            yield f"wheels/{name} has another sha256 than when it was written"


@contextmanager
def _logged(progress: JobProgress, log: Log) -> Iterator[None]:
    """Log the progress at intervals while the context is open."""
    ended = Event()

    def write_lines() -> None:
        while not ended.wait(LOG_INTERVAL_S):
            log(jobs.headline(progress.to_json()))

    logger = Thread(target=write_lines, daemon=True)
    logger.start()
    try:
        yield
    finally:
        ended.set()
        logger.join()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the context is open. huggingface_hub has no other interface for them."""
    before: dict[str, str | None] = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _not_fetched(kind: RefusalKind, what: str, detail: str) -> Refusal:
    return kind(
        what=f"{what} was not written to the bundle: {detail}",
        expected="a machine that reaches the registry, the hub and the package index",
        fix="ansible-playbook pull.yml -e bundle=DIR again: what has arrived is kept.",
    )


def read_contents(folder: Path) -> Contents:
    """Return the contents of a finished bundle. Raises RefusedError."""
    try:
        contents: Contents = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        _ = contents["models"], contents["wheels"].items()
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError([_incomplete(folder, f"{CONTENTS}: {type(error).__name__}: {error}")]) from error
    return contents


def _image_json(image: BundledImage) -> BundledImageJson:
    return {
        "name": image.name,
        "host": image.host,
        "repository": image.repository,
        "digest": image.digest,
        "platforms": list(image.platforms),
    }
