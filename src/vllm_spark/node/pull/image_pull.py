"""An image by digest from a shelf into this box's Docker, under its own name. Runs on both Sparks.

Docker knows a digest only of an image that it pulled under that name. So for as long as the pull takes, this box's
Docker finds the registry of that name on its own loopback device: for docker.io as a mirror, which a reload of Docker
takes and which stops no container; for another registry by a line of /etc/hosts, because Docker asks mirrors for
docker.io alone.
Both are put back to the byte, by the next run where this one was killed.

    python3 -m vllm_spark.node.pull.image_pull pull|shelf|repair
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

from vllm_spark.node.pull import job as jobs
from vllm_spark.node.pull.blob_registry import (
    BlobCache,
    BlobCacheError,
    Server,
    Upstream,
    matches_platform,
    members,
    mirror_image,
)
from vllm_spark.node.pull.job import JobError, JobProgress

HOSTS = Path("/etc/hosts")
DAEMON = Path("/etc/docker/daemon.json")
# What daemon.json was, while a mirror is in it: its text, or that there was none.
JOURNAL = Path("/var/lib/vllm-spark/pull/daemon.json.before")
# What a pull has brought here, a reference a line: `prune` and `remove` know it by that before any launch names it.
PULLED = Path("/var/lib/vllm-spark/pulled")
MARK = "# vllm-spark: for one pull"
DOCKER_HUB = "docker.io"
HTTP = 80
RELOAD_S = 15.0
POLL_INTERVAL_S = 0.5
# A shelf that nobody asks has been forgotten by a run that was killed.
IDLE_S = 7200.0


def pull(request: Mapping[str, Any], progress: JobProgress, stop: Event) -> Mapping[str, Any]:
    """Have the image in Docker; returns its id and digests. Asks for nothing where Docker has it."""
    repair()
    if found := inspect(request["image"]):
        return {"pulled": False, "sent": 0, **found}
    shelf = blob_cache_of(request)
    shelf.make()
    try:
        if request.get("whole"):
            _fill(shelf, request, progress)
        total = _size(shelf, request)
    except (BlobCacheError, ValueError, KeyError) as error:
        raise JobError("image", f"{request['image']}: {error}") from error
    host, _, port = request["host"].partition(":")
    port_here = request["port"] if host == DOCKER_HUB else int(port or HTTP)
    try:
        server = Server(("127.0.0.1", port_here), shelf)
    except OSError as error:
        raise JobError("image-port", f"127.0.0.1:{port_here}: {error}") from error
    record_pulled(request["image"])
    with server, redirect_registry(host, port_here):
        Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
        progress.enter("pulling", total)
        said = _docker_pull(request, progress, server, stop)
        server.shutdown()
    found = inspect(request["image"])
    if not found:
        raise JobError("image", f"docker pull {request['image']}: {said}")
    return {"pulled": True, "sent": server.sent, "fetched": shelf.fetched, **found}


def record_pulled(image: str) -> None:
    """A line more, unless it is there; before the pull, which may be killed as soon as Docker has the image."""
    known = PULLED.read_text(encoding="utf-8").splitlines() if PULLED.exists() else []
    if image not in known:
        PULLED.write_text("".join(f"{name}\n" for name in [*known, image]), encoding="utf-8")


def _fill(shelf: BlobCache, request: Mapping[str, Any], progress: JobProgress) -> None:
    """All layers into the folder, also those that this box's Docker has. Raises ShelfError."""
    progress.enter("fetching the layers", _size(shelf, request))
    for _, size in mirror_image(shelf, request["repository"], request["digest"], (request["platform"],)):
        progress.add(size)


def blob_cache_of(request: Mapping[str, Any]) -> BlobCache:
    behind = None
    if given := request.get("behind"):
        # A shelf wants the token of this transfer; a registry must not see it.
        token = request.get("token", "") if given.get("url") else ""
        behind = Upstream(given.get("url") or registry_url(given["host"]), given["host"], token)
        freeze_dns(behind.url)
    return BlobCache(Path(request["folder"]), behind, keep=bool(request["keep"]))


def registry_url(host: str) -> str:
    """Where a registry answers, over plain HTTP where this box's Docker has been told that it may."""
    if host == DOCKER_HUB:
        return "https://registry-1.docker.io"
    shown = _docker_info("{{json .RegistryConfig.IndexConfigs}}") or {}
    secure = shown.get(host, {}).get("Secure", True)
    return f"{'https' if secure else 'http'}://{host}"


def freeze_dns(url: str) -> None:
    """Have this process know a name as it is now: the line that leads Docker here would lead the shelf to itself."""
    name = urlsplit(url).hostname or ""
    ask = socket.getaddrinfo
    try:
        addresses = sorted({str(found[4][0]) for found in ask(name, None)})
    except OSError:
        return  # the first request says so

    def known(host: Any, *words: Any, **more: Any) -> Any:
        if host != name:
            return ask(host, *words, **more)
        return [found for address in addresses for found in ask(address, *words, **more)]

    socket.getaddrinfo = known


def serve(request: Mapping[str, Any], progress: JobProgress, stop: Event) -> Mapping[str, Any]:
    """Give the head's images to the worker, until told to end."""
    shelf = blob_cache_of(request)
    shelf.make()
    with Server((request["address"], request["port"]), shelf, request["token"]) as server:
        progress.enter("serving", 0)
        Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
        begun = time.monotonic()
        while not stop.wait(0.2) and time.monotonic() - begun < IDLE_S:
            progress.done = server.sent
        server.shutdown()
        return {"sent": server.sent}


def _size(shelf: BlobCache, request: Mapping[str, Any]) -> int:
    """Bytes of all layers as they travel; Docker takes those that it lacks. Raises ShelfError."""
    images, blobs = members(shelf.manifest(request["repository"], request["digest"]))
    for image in images:
        if matches_platform(image, (request["platform"],)):
            _, blobs = members(shelf.manifest(request["repository"], image["digest"]))
    if not blobs:
        raise BlobCacheError(f"no image for {request['platform']}")
    return sum(int(blob["size"]) for blob in blobs)


def _docker_pull(request: Mapping[str, Any], progress: JobProgress, server: Server, stop: Event) -> str:
    """The last words of docker pull, which is ended when this job is."""
    words = ["docker", "pull", "--platform", request["platform"], request["image"]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        while running.poll() is None:
            if progress.total and server.sent >= progress.total:
                # Every layer is with Docker, which takes longer to unpack them than they took to come.
                progress.enter("unpacking", 0)
            elif progress.total:
                progress.done = server.sent
            if stop.wait(POLL_INTERVAL_S):
                running.terminate()
        said = running.stdout.read() if running.stdout else ""
    if stop.is_set():
        raise JobError("stopped", "it was told to end; the layers that have arrived are kept")
    return " ".join(said.split())[-400:]


def inspect(image: str) -> dict[str, Any]:
    """id and digests of an image that Docker has under this name, else nothing."""
    shown = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=False)
    if shown.returncode:
        return {}
    found = json.loads(shown.stdout)[0]
    return {"id": found["Id"], "digests": found.get("RepoDigests", [])}


@contextmanager
def redirect_registry(host: str, port: int) -> Iterator[None]:
    """Have this box's Docker find a registry on the loopback device."""
    if host == DOCKER_HUB:
        add_mirror(port)
    else:
        add_hosts_entry(host)
    try:
        yield
    finally:
        repair()


def add_hosts_entry(host: str) -> None:
    # In place: in a container /etc/hosts is a mount, which cannot be replaced.
    HOSTS.write_text(f"127.0.0.1 {host} {MARK}\n{HOSTS.read_text(encoding='utf-8')}", encoding="utf-8")


def add_mirror(port: int) -> None:
    """Add the mirror and have Docker take it. Raises JobError."""
    before = DAEMON.read_text(encoding="utf-8") if DAEMON.exists() else None
    try:
        kept = json.loads(before or "{}")
    except ValueError as error:
        raise JobError("docker-mirror", f"{DAEMON} is no JSON: {error}") from error
    JOURNAL.parent.mkdir(parents=True, exist_ok=True)
    JOURNAL.write_text(json.dumps({"before": before}), encoding="utf-8")
    own = f"http://127.0.0.1:{port}"
    _daemon({**kept, "registry-mirrors": [own, *kept.get("registry-mirrors", [])]})
    until = time.monotonic() + RELOAD_S
    while not any(found.rstrip("/") == own for found in _mirrors()):
        if time.monotonic() > until:
            repair()
            raise JobError("docker-mirror", f"Docker did not take {own} as a mirror within {RELOAD_S:.0f} s")
        time.sleep(POLL_INTERVAL_S)


def repair() -> None:
    """Put back what a pull has changed, this one or one that was killed."""
    if HOSTS.exists() and MARK in (text := HOSTS.read_text(encoding="utf-8")):
        kept = [line for line in text.splitlines(keepends=True) if MARK not in line]
        HOSTS.write_text("".join(kept), encoding="utf-8")
    if JOURNAL.exists():
        before = json.loads(JOURNAL.read_text(encoding="utf-8"))["before"]
        kept_json = json.loads(before or "{}")
        # Docker forgets a mirror only when it is told another list, so it is told one, and then the file is as it was.
        _daemon({**kept_json, "registry-mirrors": kept_json.get("registry-mirrors", [])})
        if before is None:
            DAEMON.unlink()
        else:
            DAEMON.write_text(before, encoding="utf-8")
        JOURNAL.unlink()


def restore_docker_config(_request: Mapping[str, Any], _progress: JobProgress, _stop: Event) -> Mapping[str, Any]:
    """The same, when nothing is to be pulled any more."""
    repair()
    return {}


def _daemon(document: Mapping[str, Any]) -> None:
    """Write daemon.json, in place because its owner and mode are somebody's, and have Docker read it."""
    DAEMON.parent.mkdir(parents=True, exist_ok=True)
    DAEMON.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    done = subprocess.run(["systemctl", "reload", "docker"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise JobError("docker-mirror", f"systemctl reload docker: {done.stderr.strip()[:300]}")


def _mirrors() -> list[str]:
    return list(_docker_info("{{json .RegistryConfig.Mirrors}}") or [])


def _docker_info(what: str) -> Any:
    shown = subprocess.run(["docker", "info", "--format", what], capture_output=True, text=True, check=False)
    return json.loads(shown.stdout) if shown.returncode == 0 else None


def main() -> int:
    command = sys.argv[1]
    os.umask(0o022)
    job, work = {"pull": ("image", pull), "shelf": ("shelf", serve), "repair": ("repair", restore_docker_config)}[
        command
    ]
    return jobs.run(job, work)


if __name__ == "__main__":
    sys.exit(main())
