"""Bring an image into this host's Docker, take a built one out of it, or serve images to a Spark. Runs on the host.

Docker speaks plain HTTP to the loopback device without configuration. During a job a blob server listens there
(ports.MIRROR_PORT). Docker pulls 127.0.0.1:25093/REGISTRY/REPOSITORY@DIGEST from it, or pushes a built image to it.
Nothing of Docker's configuration changes, so an interrupted job leaves nothing to restore.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, NotRequired, TypedDict

from vllm_spark.node import host_layout
from vllm_spark.node.pull import docker_engine
from vllm_spark.node.pull.blob_cache import BlobCache, image_blobs, mirror_image
from vllm_spark.node.pull.blob_server import BlobServer
from vllm_spark.node.pull.blob_upload import Uploads
from vllm_spark.node.pull.docker_engine import EngineError
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.layer_progress import LayerProgress, layer_id
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.node.pull.range_server import serve
from vllm_spark.node.pull.upstream import Upstream, helper_note, registry_of
from vllm_spark.node.state_file import replace_file

# Images that a pull brought, one reference per line. `prune` and `remove` read it.
PULLED = Path(host_layout.PULLED)
# A server without a request for this long was left behind by a run that was killed. Docker may unpack for an hour.
IDLE_TIMEOUT_S = 7200.0


class UpstreamRequest(TypedDict):
    """Source of an image: a repository of a registry by `host`, or of the blob server at `url`."""

    host: str
    repository: str
    url: NotRequired[str]


class ImageRequest(TypedDict):
    """An image to pull as `image`: NAME@DIGEST, or NAME:TAG for `digest`. NAME begins with the loopback address.

    `folder` is the blob cache, `keep` stores blobs of `upstream` there. `all_layers` also fetches the layers that
    Docker has.
    """

    image: str
    digest: str
    platform: str
    folder: str
    keep: bool
    upstream: UpstreamRequest | None
    all_layers: NotRequired[bool]
    token: NotRequired[str]


class PushRequest(TypedDict):
    """An image NAME:TAG that was built here. `upstream` has the layers of its base, which are not copied."""

    image: str
    folder: str
    upstream: UpstreamRequest | None


class ImageServerRequest(TypedDict):
    """Images to serve on one address of the fabric: repository -> the upstream of blobs that the cache lacks."""

    address: str
    port: int
    folder: str
    repositories: dict[str, UpstreamRequest | None]
    token: NotRequired[str]


class ImageResult(TypedDict):
    """Result of a pull: bytes sent to Docker and bytes fetched from upstream. `pulled` is False if Docker had it.

    `note` is for the operator.
    """

    digest: str
    pulled: bool
    sent: int
    fetched: int
    note: str


@dataclass(frozen=True, slots=True)
class LocalName:
    """The parts of 127.0.0.1:PORT/REPOSITORY@DIGEST or 127.0.0.1:PORT/REPOSITORY:TAG."""

    port: int
    repository: str
    tag: str

    @classmethod
    def of(cls, image: str) -> LocalName:
        address, _, rest = image.partition("@")[0].partition("/")
        repository, _, tag = rest.partition(":")
        return cls(int(address.rpartition(":")[2]), repository, tag)

    def __str__(self) -> str:
        return f"127.0.0.1:{self.port}/{self.repository}"


def pull_image(request: ImageRequest, progress: JobProgress, stop: Event) -> ImageResult:
    """Pull an image unless Docker has it by this digest. Raises JobError."""
    image, digest = request["image"], request["digest"]
    note = _note(request["upstream"])
    with _job_errors(image, stop, note):
        if is_complete(image, digest):
            return {"digest": digest, "pulled": False, "sent": 0, "fetched": 0, "note": ""}
        upstream = upstream_of(request["upstream"], request.get("token", ""))
        cache = BlobCache(Path(request["folder"]), upstream, keep=bool(request["keep"]))
        # A registry without the image refuses here, before a file exists.
        layers = _layers(cache, request, progress)
        cache.create()
        record_pulled(image)
        name = LocalName.of(image)
        with _loopback(name, cache, {name.tag: digest} if name.tag else {}) as server:
            for event in docker_engine.pull(str(name), name.tag or digest, request["platform"], stop):
                layers.add(event)
                _show(layers, progress)
            if known_image(image, digest) and not is_complete(image, digest):
                _fetch_omitted(image, request["platform"])
        if not is_complete(image, digest):
            raise EngineError(f"Docker's answer ended, and Docker does not have all of {digest}. {server.fault}")
        return {"digest": digest, "pulled": True, "sent": server.sent, "fetched": cache.fetched, "note": note}


def push_image(request: PushRequest, progress: JobProgress, stop: Event) -> dict[str, str]:
    """Push a built image into the cache, without the layers of its base. Return its digest. Raises JobError."""
    image, name = request["image"], LocalName.of(request["image"])
    with _job_errors(image, stop, _note(request["upstream"])):
        cache = BlobCache(Path(request["folder"]), upstream_of(request["upstream"]))
        cache.create()
        progress.enter("taking the built layers from Docker", 0)
        uploads, sent = Uploads(cache), ""
        with _loopback(name, cache, {}, uploads) as server:
            for event in docker_engine.push(str(name), name.tag, stop):
                sent = str((event.get("aux") or {}).get("Digest", sent))
        uploads.remove_unfinished()
        digest = server.tags.get(name.tag, "")
        # Another process of this host can write to the port, but not to Docker's answer.
        if not digest or digest != sent:
            raise EngineError(f"Docker pushed {sent or 'no manifest'}, and {digest or 'none'} arrived. {server.fault}")
        return {"image": image, "digest": digest}


def serve_images(request: ImageServerRequest, progress: JobProgress, stop: Event) -> dict[str, int]:
    """Serve the blob cache to the other Sparks until stopped. Raises JobError."""
    first = BlobCache(Path(request["folder"]))
    first.create()
    with _job_errors("the image server", stop):
        caches = {name: first.sibling(upstream_of(source)) for name, source in request["repositories"].items()}
    address = (request["address"], request["port"])
    return serve(lambda: BlobServer(address, caches, request["token"]), progress, stop, IDLE_TIMEOUT_S)


def _note(source: UpstreamRequest | None) -> str:
    return helper_note(source["host"]) if source and "url" not in source else ""


@contextmanager
def _job_errors(image: str, stop: Event, note: str = "") -> Iterator[None]:
    """Raise JobError for the errors of Docker, of a registry and of an image's documents."""
    try:
        yield
    except (BlobError, EngineError, ValueError, KeyError) as error:
        if stop.is_set():
            raise JobError("stopped", "stopped on request; the layers in the cache are kept") from error
        raise JobError("image", f"{image}: {error}".strip() + (f". {note}" if note else "")) from error


@contextmanager
def _loopback(
    name: LocalName, cache: BlobCache, tags: Mapping[str, str], uploads: Uploads | None = None
) -> Iterator[BlobServer]:
    """Serve a cache to this host's Docker. Raises JobError if the port is taken."""
    try:
        server = BlobServer(("127.0.0.1", name.port), {name.repository: cache}, tags=tags, uploads=uploads)
    except OSError as error:
        raise JobError("image-port", f"127.0.0.1:{name.port}: {error}") from error
    with server.running():
        try:
            yield server
        except EngineError as error:
            # Docker knows only that a reply ended early.
            raise EngineError(f"{error}. {server.fault}" if server.fault else str(error)) from error


def upstream_of(source: UpstreamRequest | None, token: str = "") -> Upstream | None:
    """Return the upstream of a request. Raises EngineError."""
    if source is None:
        return None
    if url := source.get("url", ""):
        return Upstream(url, source["repository"], source["host"], token)
    engine = docker_engine.info()
    for variable, key in (("http_proxy", "HttpProxy"), ("https_proxy", "HttpsProxy"), ("no_proxy", "NoProxy")):
        if engine.get(key):
            os.environ.setdefault(variable, str(engine[key]))
    # The token is for the blob server of this run. A registry must not see it.
    url, host = registry_of(source["host"], engine)
    return Upstream(url, source["repository"], host)


def _layers(cache: BlobCache, request: ImageRequest, progress: JobProgress) -> LayerProgress:
    """Return the layers of an image by their packed sizes, and fetch all of them if asked to. Raises BlobError."""
    blobs = list(image_blobs(cache, request["digest"], (request["platform"],)))
    for blob in blobs:
        # One that a loss of power has cut is removed, and Docker gets all of it from upstream.
        cache.is_stored(blob["digest"], int(blob["size"]))
    if not blobs:
        raise BlobError(f"no image for {request['platform']}")
    if request.get("all_layers"):
        progress.enter("fetching the layers", sum(int(blob["size"]) for blob in blobs))
        for _, size in mirror_image(cache, request["digest"], (request["platform"],)):
            progress.add(size)
    return LayerProgress({layer_id(blob["digest"]): int(blob["size"]) for blob in blobs[1:]})


def _show(layers: LayerProgress, progress: JobProgress) -> None:
    if progress.phase != layers.phase:
        progress.enter(layers.phase, layers.total)
    progress.total, progress.done = layers.total, layers.done


def _fetch_omitted(image: str, platform: str) -> None:
    """Fetch the packed layers that a pull has omitted, because the containerd store has unpacked them already."""
    address = (docker_engine.info().get("Containerd") or {}).get("Address")
    if not address:
        return
    argv = ["ctr", "--address", address, "--namespace", "moby", "content", "fetch", "--plain-http"]
    done = subprocess.run([*argv, "--platform", platform, image], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineError(f"ctr content fetch: {' '.join(done.stderr.split())[-300:]}")


def record_pulled(image: str) -> None:
    """Record an image in PULLED. Called before the pull, which may be killed once Docker has the image."""
    images = PULLED.read_text(encoding="utf-8").splitlines() if PULLED.exists() else []
    if image not in images:
        replace_file(PULLED, "".join(f"{name}\n" for name in [*images, image]))


def known_image(image: str, digest: str) -> Mapping[str, Any]:
    """Return the image that Docker has under this name and digest, or nothing. Raises EngineError."""
    found = docker_engine.image(image) or {}
    return found if f"{LocalName.of(image)}@{digest}" in (found.get("RepoDigests") or []) else {}


def is_complete(image: str, digest: str) -> bool:
    """Return True if Docker has an image under this name and digest, with all its layers. Raises EngineError.

    The containerd store reports no layers of an image while one of its packed layers is absent.
    """
    return bool((known_image(image, digest).get("RootFS") or {}).get("Layers"))
