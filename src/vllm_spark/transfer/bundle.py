"""A folder that carries images, models and the toolkit's packages to a site without internet.

    bundle.json   what is in it; written last, so that a folder without it is not finished
    images/       an OCI image layout: every blob by its digest
    hub/          a hub cache with a manifest per model
    wheels/       the Python packages of requirements.lock

It is written by the machine that runs Ansible, and asks no Spark for anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusalKind, RefusedError, register
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.pull import blob_registry, hub_cache, hub_fetch
from vllm_spark.node.pull.blob_registry import BlobCache, BlobCacheError, Upstream
from vllm_spark.node.pull.hub_cache import ManifestError, Source
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.pinning.registry import ADDRESSES
from vllm_spark.transfer import images as transfer_images
from vllm_spark.transfer import messages
from vllm_spark.transfer.site import PulledModel, models

# The id is shared with the support bundle; the runbook is that of the missing part.
IMAGE_NOT_WRITTEN = RefusalKind("bundle-not-written", "image-registry")
PACKAGES_NOT_WRITTEN = RefusalKind("bundle-not-written", "bundle-lacks")
BUNDLE_LACKS = register("bundle-lacks", runbook="bundle-lacks")

CONTENTS = "bundle.json"
LOG_INTERVAL_S = 5.0
Say = Callable[[str], None]


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
    """What a bundle is to hold: of every Spark's specs, each image and model once."""

    images: tuple[BundledImage, ...]
    models: tuple[PulledModel, ...]

    @classmethod
    def of(cls, specs: Sequence[Spec]) -> BundleRequest:
        images = (transfer_images.image_of(spec, "") for spec in specs)
        held = (
            BundledImage(image.name, image.host, image.repository, image.digest, tuple(spec.platforms))
            for image, spec in zip(images, specs, strict=True)
        )
        return cls(tuple(dict.fromkeys(held)), tuple(models(specs)))


@dataclass(frozen=True, slots=True)
class RemoteSources:
    """Where a bundle gets its content. `registries` are those that answer elsewhere, host -> URL; `environment` is that
    of the hub's library (HF_ENDPOINT, HF_TOKEN, a proxy); `pip` its options for pip download."""

    registries: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pip: Sequence[str] = ("--requirement", str(paths.ROOT / "requirements.lock"), "setuptools>=80")

    def registry(self, host: str) -> str:
        return self.registries.get(host) or ADDRESSES.get(host) or f"https://{host}"


def is_finished(folder: Path) -> bool:
    return (folder / CONTENTS).is_file()


def write(folder: Path, wanted: BundleRequest, outside: RemoteSources, toolkit: str, say: Say) -> None:
    """Fetch everything, go on where an earlier run was cut, and say last that it is finished. Raises RefusedError."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in wanted.images:
        _write_image(folder / "images", image, outside, say)
    _index(folder / "images", wanted.images)
    with _environment(outside.environment):
        for model in wanted.models:
            _write_model(folder / "hub", model, say)
    wheels = _write_wheels(folder / "wheels", outside, say)
    contents = {
        "toolkit": toolkit,
        "images": [asdict(image) for image in wanted.images],
        "models": [model.request() for model in wanted.models],
        "wheels": wheels,
    }
    hub_cache.place(folder / CONTENTS, contents)


def refusals(folder: Path, wanted: BundleRequest, say: Say) -> list[Refusal]:
    """Read the whole bundle; what it lacks, and what in it is not what it should be. Nothing is changed, because it may
    lie on a disk that cannot be written."""
    found: list[str] = []
    for image in wanted.images:
        say(f"reading {image.name}")
        found += blob_registry.missing_blobs(folder / "images", image.digest, image.platforms)
    for model in wanted.models:
        say(f"reading {model}")
        found += _lacking_of(folder / "hub", model)
    found += _lacking_wheels(folder)
    return [
        BUNDLE_LACKS(
            what=f"the bundle {folder}: {reason}",
            expected="every image, model and wheel of these deployments, with its checksum",
            fix=f"where there is internet, remove {folder / CONTENTS} and run the same command: what is right stays.",
        )
        for reason in found
    ]


def _write_image(layout: Path, image: BundledImage, outside: RemoteSources, say: Say) -> None:
    kept = BlobCache(layout, Upstream(outside.registry(image.host), image.host))
    progress = JobProgress()
    progress.enter(image.name.partition("@")[0], 0)
    before = 0
    try:
        with _told(progress, say):
            for _, size in blob_registry.mirror_image(kept, image.repository, image.digest, image.platforms):
                progress.done += before
                progress.total, before = progress.total + size, size
    except (BlobCacheError, ValueError, KeyError, OSError) as error:
        raise RefusedError([_not_fetched(IMAGE_NOT_WRITTEN, image.name, str(error))]) from error
    if missing := list(blob_registry.missing_blobs(layout, image.digest, image.platforms, read=False)):
        raise RefusedError([_not_fetched(IMAGE_NOT_WRITTEN, image.name, "; ".join(missing))])
    say(f"{image.name} is in the bundle")


def _index(layout: Path, images: Iterable[BundledImage]) -> None:
    kept = BlobCache(layout)
    blob_registry.write_index(layout, {image.name: kept.manifest(image.repository, image.digest) for image in images})


def _write_model(hub: Path, model: PulledModel, say: Say) -> None:
    hub.mkdir(parents=True, exist_ok=True)
    progress = JobProgress()
    try:
        with _told(progress, say):
            hub_fetch.ensure_model(Source(hub, model.folder, model.commit), model.repository, progress)
    except (JobError, ManifestError) as error:
        reason = getattr(error, "reason", "no-manifest")
        raise RefusedError([messages.job_refusal(reason, f"{model}: {error}")]) from error
    say(f"{model} is in the bundle")


def _write_wheels(folder: Path, outside: RemoteSources, say: Say) -> dict[str, str]:
    """File -> sha256."""
    say("fetching the toolkit's Python packages")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *outside.pip]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  our own words
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise RefusedError([_not_fetched(PACKAGES_NOT_WRITTEN, "the toolkit's Python packages", said)])
    return {file.name: hub_cache.sha256_of(file) for file in sorted(folder.iterdir())}


def _lacking_of(hub: Path, model: PulledModel) -> Iterator[str]:
    kept = Source(hub, model.folder, model.commit)
    try:
        manifest = kept.manifest()
    except ManifestError as error:
        yield str(error)
        return
    if manifest is None:
        yield f"it has no {model}"
        return
    for entry in manifest.files:
        file = kept.file(entry)
        if not file.is_file():
            yield f"{model} lacks {entry.path}"
        elif file.stat().st_size != entry.size or hub_cache.sha256_of(file) != entry.sha256:
            yield f"{entry.path} of {model} is not what its manifest says"


def _lacking_wheels(folder: Path) -> Iterator[str]:
    contents = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
    for name, sha256 in contents["wheels"].items():
        file = folder / "wheels" / name
        if not file.is_file():
            yield f"it lacks wheels/{name}"
        elif hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            yield f"wheels/{name} has another sha256 than when it was written"


@contextmanager
def _told(progress: JobProgress, say: Say) -> Iterator[None]:
    over = Event()

    def tell() -> None:
        while not over.wait(LOG_INTERVAL_S):
            say(messages.job_headline(progress.to_json()))

    teller = Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """The hub's library is told by its variables alone."""
    before: dict[str, str | None] = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _not_fetched(kind: RefusalKind, what: str, said: str) -> Refusal:
    return kind(
        what=f"{what} did not come into the bundle: {said}",
        expected="this machine to reach where it is",
        fix="ansible-playbook pull.yml -e bundle=DIR again: what has arrived is kept.",
    )


def read_contents(folder: Path) -> dict[str, Any]:
    """What a finished bundle says of itself."""
    return dict(json.loads((folder / CONTENTS).read_text(encoding="utf-8")))
