"""Pull an image by digest into this host's Docker, or serve images to another Spark. Runs on the host.

Docker knows a digest only of an image that it pulled under that name. During a pull this host's Docker therefore
connects to a blob server on its loopback device under the name of the registry (docker_config.py).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from threading import Event, Thread
from typing import NotRequired, TypedDict

from vllm_spark.node.pull.blob_cache import BlobCache, blobs_of, mirror_image
from vllm_spark.node.pull.blob_server import BlobServer
from vllm_spark.node.pull.docker_config import Redirection, freeze_dns, registry_url, undo
from vllm_spark.node.pull.files import replace_file
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.node.pull.peer_server import SentBytes, serve
from vllm_spark.node.pull.upstream import Upstream

# Images that a pull brought, one reference per line. `prune` and `remove` read it.
PULLED = Path("/var/lib/vllm-spark/pulled")
POLL_INTERVAL_S = 0.5
# A server without a request for this long was left behind by a run that was killed. Docker may unpack for an hour.
IDLE_TIMEOUT_S = 7200.0


class UpstreamRequest(TypedDict):
    """Source of images: a registry by `host`, or the blob server at `url`."""

    host: str
    url: NotRequired[str]


class ImageSource(TypedDict):
    """An image and the blob cache for it. `folder` is the cache, `keep` stores blobs of `upstream` there.

    `port` is that of the loopback device for a pull, or that of a server on the fabric.
    """

    image: str
    host: str
    repository: str
    digest: str
    platform: str
    port: int
    folder: str
    keep: bool
    upstream: UpstreamRequest | None
    token: NotRequired[str]


class ImageRequest(ImageSource):
    """An image to pull. `all_layers` also fetches the layers that this host's Docker has."""

    all_layers: NotRequired[bool]


class ImageServerRequest(ImageSource):
    """Images to serve on one address of the fabric."""

    address: str


class ImageResult(TypedDict):
    """Result of a pull: the digest, the names by digest under which Docker has it, bytes sent to Docker, and bytes
    fetched from upstream."""

    digest: str
    digests: list[str]
    pulled: bool
    sent: int
    fetched: int


def pull_image(request: ImageRequest, progress: JobProgress, stop: Event) -> ImageResult:
    """Pull an image unless Docker has it. Raises JobError."""
    undo()
    digest = request["digest"]
    if digests := repo_digests(request["image"]):
        return {"pulled": False, "sent": 0, "fetched": 0, "digest": digest, "digests": digests}
    cache = blob_cache_of(request)
    cache.create()
    try:
        if request.get("all_layers"):
            _mirror(cache, request, progress)
        total = _compressed_bytes(cache, request)
    except (BlobError, ValueError, KeyError) as error:
        raise JobError("image", f"{request['image']}: {error}") from error
    redirection = Redirection.of(request["host"], request["port"])
    local_port = redirection.port
    try:
        server = BlobServer(("127.0.0.1", local_port), cache)
    except OSError as error:
        raise JobError("image-port", f"127.0.0.1:{local_port}: {error}") from error
    record_pulled(request["image"])
    with server, redirection.active():
        Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
        progress.enter("pulling", total)
        output = _docker_pull(request, progress, server, stop)
        server.shutdown()
    digests = repo_digests(request["image"])
    if not digests:
        raise JobError("image", f"docker pull {request['image']}: {output}")
    return {
        "pulled": True,
        "sent": server.sent,
        "fetched": cache.fetched,
        "digest": digest,
        "digests": digests,
    }


def record_pulled(image: str) -> None:
    """Record an image in PULLED. Called before the pull, which may be killed once Docker has the image."""
    images = PULLED.read_text(encoding="utf-8").splitlines() if PULLED.exists() else []
    if image not in images:
        replace_file(PULLED, "".join(f"{name}\n" for name in [*images, image]))


def _mirror(cache: BlobCache, request: ImageRequest, progress: JobProgress) -> None:
    """Fetch all layers into the cache. Raises BlobError."""
    progress.enter("fetching the layers", _compressed_bytes(cache, request))
    for _, size in mirror_image(cache, request["repository"], request["digest"], (request["platform"],)):
        progress.add(size)


def blob_cache_of(request: ImageSource) -> BlobCache:
    upstream = None
    if source := request["upstream"]:
        # The token is for the blob server of this run. A registry must not see it.
        token = request.get("token", "") if source.get("url") else ""
        upstream = Upstream(source.get("url") or registry_url(source["host"]), source["host"], token)
        freeze_dns(upstream.url)
    return BlobCache(Path(request["folder"]), upstream, keep=bool(request["keep"]))


def serve_images(request: ImageServerRequest, progress: JobProgress, stop: Event) -> SentBytes:
    """Serve the blob cache to the other Spark until stopped."""
    cache = blob_cache_of(request)
    cache.create()
    address = (request["address"], request["port"])
    return serve(lambda: BlobServer(address, cache, request["token"]), progress, stop, IDLE_TIMEOUT_S)


def _compressed_bytes(cache: BlobCache, request: ImageRequest) -> int:
    """Return the transfer size of all layers. Raises BlobError."""
    blobs = blobs_of(cache, request["repository"], request["digest"], request["platform"])
    if not blobs:
        raise BlobError(f"no image for {request['platform']}")
    return sum(int(blob["size"]) for blob in blobs)


def _docker_pull(request: ImageRequest, progress: JobProgress, server: BlobServer, stop: Event) -> str:
    """Run docker pull and return the end of its output. Raises JobError if the job is stopped."""
    argv = ["docker", "pull", "--platform", request["platform"], request["image"]]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        while running.poll() is None:
            if progress.total and server.sent >= progress.total:
                # Docker has every layer and takes longer to unpack them than the transfer took.
                progress.enter("unpacking", 0)
            elif progress.total:
                progress.done = server.sent
            if stop.wait(POLL_INTERVAL_S):
                running.terminate()
        output = running.stdout.read() if running.stdout else ""
    if stop.is_set():
        raise JobError("stopped", "stopped on request; the layers that have arrived are kept")
    return " ".join(output.split())[-400:]


def repo_digests(image: str) -> list[str]:
    """Return the names by digest of an image. Empty if Docker does not have it under this name."""
    done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=False)
    return [] if done.returncode else list(json.loads(done.stdout)[0].get("RepoDigests") or [])
