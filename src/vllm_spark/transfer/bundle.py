"""A folder that carries images, models and the toolkit's packages to a site without internet.

    bundle.json   the contents; written last, so a folder without it is not finished
    files.sha256  the sha256 of every file, wheels included; files.sha256.sig is the operator's signature of it
    images/       an OCI image layout: every blob by its digest
    hub/          a hub cache with a manifest per model
    wheels/       the Python packages of requirements.lock

The machine that runs Ansible writes it and needs no connection to a Spark for that.

    python -m vllm_spark.transfer.bundle    own_process: writes or checks it for the action plugin vllm_pull_bundle
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from vllm_spark.core import own_process, paths, version
from vllm_spark.core.own_process import Log
from vllm_spark.core.pace import Pace
from vllm_spark.core.refusal import Fix, Refusal, RefusalKind, RefusedError, register
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import shared_blobs
from vllm_spark.node.host_job import JobEndedError
from vllm_spark.node.pull import blob_cache, hub_fetch
from vllm_spark.node.pull.blob_cache import BlobCache
from vllm_spark.node.pull.files import LinkError
from vllm_spark.node.pull.job import JobProgress, repeated
from vllm_spark.node.pull.model_files import ManifestError, ModelRef
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.pinning import registry
from vllm_spark.recipe import image_name
from vllm_spark.transfer import bundle_check, jobs
from vllm_spark.transfer.bundle_check import CONTENTS, FileList, Trust
from vllm_spark.transfer.site import PulledModel, models

# The id is shared with the support bundle; the runbook is that of the part that was not written.
IMAGE_NOT_WRITTEN = RefusalKind("bundle-not-written", "image-registry")
PACKAGES_NOT_WRITTEN = RefusalKind("bundle-not-written", "bundle-lacks")
BUNDLE_INCOMPLETE = register("bundle-lacks", runbook="bundle-lacks")

BLOBS = "images/blobs/sha256/"
POLL_INTERVAL_S = 1.0


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
        bundled = (
            BundledImage(spec.source, *image_name.split(spec.recipe["image"]["repository"]), spec.digest, platforms)
            for spec, platforms in ((spec, tuple(spec.platforms)) for spec in specs)
        )
        return cls(tuple(dict.fromkeys(bundled)), tuple(models(specs)))


@dataclass(frozen=True, slots=True)
class RemoteSources:
    """Sources of a bundle. `registries`: host -> URL of those with another address. `environment`: variables of
    huggingface_hub (HF_ENDPOINT, HF_TOKEN, a proxy). `pip`: options of pip download."""

    registries: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pip: Sequence[str] = ("--requirement", str(paths.ROOT / "requirements.lock"))


class Contents(TypedDict):
    """bundle.json, without the id of the bundle."""

    toolkit: str
    images: list[dict[str, Any]]
    models: list[ModelRef]


def is_finished(folder: Path) -> bool:
    return (folder / CONTENTS).is_file()


def write(folder: Path, request: BundleRequest, sources: RemoteSources, trust: Trust, log: Log) -> None:
    """Write and sign a bundle, or continue an interrupted one. Raises RefusedError."""
    key = trust.signing_key(log)
    folder.mkdir(parents=True, exist_ok=True)
    for image in request.images:
        _write_image(folder / "images", image, sources, log)
    layout = BlobCache(folder / "images")
    layout.write_index({image.name: layout.manifest(image.digest) for image in request.images})
    _write_wheels(folder / "wheels", sources, log)
    # huggingface_hub has no other interface for them. Only it runs from here on.
    os.environ.update({**sources.environment, **hub_fetch.ENVIRONMENT})
    for model in request.models:
        _write_model(folder / "hub", model, log)
    # What an earlier toolkit left there would be in the list of the bundle.
    for left in shared_blobs.unlinked(folder / "hub"):
        shared_blobs.remove(left)
    contents: Contents = {
        "toolkit": version.version(),
        "images": [asdict(image) for image in request.images],
        "models": [model.ref() for model in request.models],
    }
    bundle_check.seal(folder, contents, key, log)


def refusals(folder: Path, request: BundleRequest, trust: Trust, log: Log) -> list[Refusal]:
    """Verify the signature, read the whole bundle, and return a refusal for each missing or damaged part.

    Nothing is changed, because the bundle may be on a read-only disk. Nothing is used before the signature is verified.
    """
    try:
        listed = bundle_check.verify(folder, trust, log)
    except RefusedError as error:
        return list(error.refusals)
    faults = list(_misnamed_blobs(listed))
    for image in request.images:
        # The list was compared with every file, so a blob that is named after its listed sha256 is valid.
        faults += blob_cache.missing_blobs(folder / "images", image.digest, image.platforms)
    for model in request.models:
        if not model.manifest:
            log(f"the lock file has no manifest of {model}: it is proven by the signer alone")
        faults += _model_faults(folder / "hub", model, listed)
    return [_incomplete(folder, fault) for fault in faults]


def _incomplete(folder: Path, fault: str) -> Refusal:
    return BUNDLE_INCOMPLETE(
        what=f"the bundle {folder}: {fault}",
        expected="every image, model and wheel of these deployments, with its checksum",
        fix=f"where there is internet, remove {folder / CONTENTS} and run the same command: valid parts are kept.",
    )


def _shown(progress: JobProgress, log: Log) -> AbstractContextManager[None]:
    """Print the progress while the context is open."""
    pace = Pace()

    def show() -> None:
        if pace.due(progress.phase, time.monotonic()):
            log(jobs.headline(progress.to_json()))

    return repeated(show, POLL_INTERVAL_S)


def _write_image(layout: Path, image: BundledImage, sources: RemoteSources, log: Log) -> None:
    cache = BlobCache(layout, registry.upstream(image.host, image.repository, sources.registries))
    progress = JobProgress()
    progress.enter(image.name.partition("@")[0], 0)
    before = 0
    try:
        with _shown(progress, log):
            for _, size in blob_cache.mirror_image(cache, image.digest, image.platforms):
                progress.done += before
                progress.total, before = progress.total + size, size
    except (BlobError, ValueError, KeyError, OSError) as error:
        raise _not_fetched(IMAGE_NOT_WRITTEN, layout.parent, image.name, str(error)) from error
    if missing := list(blob_cache.missing_blobs(layout, image.digest, image.platforms)):
        raise _not_fetched(IMAGE_NOT_WRITTEN, layout.parent, image.name, "; ".join(missing))
    log(f"{image.name} is in the bundle")


def _write_model(hub: Path, model: PulledModel, log: Log) -> None:
    hub.mkdir(parents=True, exist_ok=True)
    progress = JobProgress()
    try:
        with _shown(progress, log):
            hub_fetch.ensure_model(model.source(hub), model.repository, progress)
    except JobEndedError as error:
        raise RefusedError([jobs.refusal(error.reason, f"{model}: {error}")]) from error
    log(f"{model} is in the bundle")


def _write_wheels(folder: Path, sources: RemoteSources, log: Log) -> None:
    log("fetching the toolkit's Python packages")
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *sources.pip]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603  a constant command
    if done.returncode:
        stderr = " ".join(done.stderr.split())[-300:]
        raise _not_fetched(PACKAGES_NOT_WRITTEN, folder.parent, "the toolkit's Python packages", stderr)


def _misnamed_blobs(listed: FileList) -> Iterator[str]:
    for path, sha256 in listed.files.items():
        if path.startswith(BLOBS) and path != f"{BLOBS}{sha256}":
            yield f"{path} has another sha256 than its name"


def _model_faults(hub: Path, model: PulledModel, listed: FileList) -> Iterator[str]:
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
    snapshot = source.snapshot.relative_to(hub.parent).as_posix()
    for entry in manifest.files:
        try:
            os.close(source.open(entry))
            if listed.files.get(f"{snapshot}/{entry.path}") != entry.sha256:
                yield f"{entry.path} of {model} differs from its manifest"
        except LinkError as error:
            yield str(error)
        except OSError:
            yield f"{entry.path} of {model} is missing"


def _not_fetched(kind: RefusalKind, bundle: Path, what: str, detail: str) -> RefusedError:
    return kind.error(
        what=f"{what} was not written to the bundle: {detail}",
        expected="a machine that reaches the registry, the hub and the package index",
        fix=Fix(f"ansible-playbook pull.yml -e bundle={shlex.quote(str(bundle))}", "What has arrived is kept."),
    )


def read_contents(folder: Path) -> Contents:
    """Return the contents of a finished bundle. Raises RefusedError."""
    try:
        contents: Contents = json.loads((folder / CONTENTS).read_text(encoding="utf-8"))
        _ = contents["models"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise RefusedError([_incomplete(folder, f"{CONTENTS}: {type(error).__name__}: {error}")]) from error
    return contents


def work(args: Mapping[str, Any], log: Log) -> dict[str, bool]:
    """Write the bundle, or check it if it is finished. Return whether it was `changed` and `written`. `args`: folder,
    specs (as JSON), registries (host -> URL), environment (of huggingface_hub), signers, key and unsigned
    (bundle_check.Trust), check_mode. Raises RefusedError."""
    folder = Path(args["folder"]).expanduser().resolve()
    request = BundleRequest.of([Spec.from_json(spec) for spec in args["specs"]])
    trust = Trust(Path(args["signers"]).expanduser().resolve(), args["key"], args["unsigned"])
    if is_finished(folder):
        if found := refusals(folder, request, trust, log):
            raise RefusedError(found)
        return {"changed": False, "written": False}
    if args["check_mode"]:
        trust.signing_key(log)
        names = [*(image.name for image in request.images), *map(str, request.models)]
        log(f"{folder} would get {', '.join(names)}")
    else:
        write(folder, request, RemoteSources(args["registries"], args["environment"]), trust, log)
        log(f"{folder} is finished. At a site without internet, the same command loads from it.")
    return {"changed": True, "written": True}


if __name__ == "__main__":
    sys.exit(own_process.serve(work))
