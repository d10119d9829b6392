"""Docker's HTTP API over its socket. Standard library alone: a host needs no SDK."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_unix_http import UnixConnection

if TYPE_CHECKING:
    from vllm_spark.core.types import ContainerFacts

SOCKET = "/var/run/docker.sock"
TIMEOUT_S = 20
MAX_REPLY_BYTES = 16 << 20
# Start of the identity of an image of which a packed layer is absent. Such an image runs, and cannot be compared.
INCOMPLETE = "incomplete"
# The fields of an image's configuration on which the processes of its containers depend. Docker's versions and stores
# disagree about the other fields, and whether an empty one is listed.
CONFIG_FIELDS = ("Cmd", "Entrypoint", "Env", "StopSignal", "User", "Volumes", "WorkingDir")


class DockerError(Exception):
    """The engine does not answer, or answers with an error."""


class Docker:
    """A client for the few read-only requests of facts and probes."""

    def get(self, path: str, missing_ok: bool = False) -> Any:
        """Return the JSON of a GET. Returns None for a 404 if missing_ok. Raises DockerError."""
        body = self._request(path)
        if body is None and not missing_ok:
            raise _failure(path, http.client.NOT_FOUND)
        try:
            return None if body is None else json.loads(body)
        except (ValueError, RecursionError) as error:
            raise DockerError(f"{SOCKET} {path}: the reply is not JSON") from error

    def raw(self, path: str) -> bytes:
        """Return the bytes of a GET. Raises DockerError."""
        body = self._request(path)
        if body is None:
            raise _failure(path, http.client.NOT_FOUND)
        return body

    def _request(self, path: str) -> bytes | None:
        """Return the bytes of a GET, None for a 404. Raises DockerError."""
        # Only root writes in this path, so a link in it may be followed.
        connection = UnixConnection(os.path.realpath(SOCKET), TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read(MAX_REPLY_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise DockerError(f"{SOCKET}: {getattr(error, 'strerror', None) or error}") from error
        finally:
            connection.close()
        if response.status == http.client.NOT_FOUND:
            return None
        if response.status != http.client.OK:
            raise _failure(path, response.status)
        if len(body) > MAX_REPLY_BYTES:
            raise DockerError(f"{SOCKET} {path}: the reply has more than {MAX_REPLY_BYTES} bytes")
        return body

    def containers(self, label: str) -> dict[str, ContainerFacts]:
        """Return the containers with a label, running or not, by name. Raises DockerError."""
        entries = self.get("/containers/json?all=1&filters=" + quote(json.dumps({"label": [label]})))
        containers = {entry["Names"][0].lstrip("/"): self.container(entry["Id"]) for entry in entries}
        # A container may be removed between the two requests.
        return {name: container for name, container in containers.items() if container}

    def container(self, name: str) -> ContainerFacts | None:
        """Return one container by name or id, None if there is none. Raises DockerError."""
        container = self.get(f"/containers/{name}/json", missing_ok=True)
        if not container:
            return None
        return {
            "id": container["Id"],
            "image": container["Config"]["Image"],
            "image_id": container["Image"],
            "labels": container["Config"]["Labels"] or {},
            "state": container["State"]["Status"],
            "started": epoch(container["State"]["StartedAt"]),
        }


def identity(name: str, image: dict[str, Any], engine_platform: str = "") -> str:
    """Return a text that is equal on two hosts if this name (of docker inspect) is the same image on both.

    Docker's own id is not: it is the digest of the configuration in overlay2, and the digest of the manifest or of the
    index in the containerd store (docker/cli#5526). An image that was pulled by digest is identified by that digest.
    Any other one, as a derived image, is identified by its unpacked layers and its configuration.
    """
    digest = name.partition("@")[2]
    # An incomplete image has none of its own. A pull names the platform of the engine.
    platform = f"{image['Os']}/{image['Architecture']}" if image.get("Architecture") else engine_platform
    if digest and any(known.endswith(f"@{digest}") for known in image.get("RepoDigests") or []):
        return f"{digest} for {platform}"
    if not (image.get("RootFS") or {}).get("Layers"):
        # The containerd store reports neither layers nor configuration of an image while one of its packed layers is
        # absent (moby daemon/containerd/image_list.go). A pull omits a packed layer that is unpacked already.
        return f"{INCOMPLETE}: {image.get('Id', '')}"
    config = image.get("Config") or {}
    used = {field: config[field] for field in CONFIG_FIELDS if config.get(field)}
    content = json.dumps([platform, (image.get("RootFS") or {}).get("Layers"), used], sort_keys=True)
    return f"content sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def store(info: dict[str, Any]) -> str:
    """Return the name of Docker's image store (of docker info), for example overlay2 or "overlayfs (containerd)"."""
    driver = str(info.get("Driver") or "")
    types = [value for key, value in info.get("DriverStatus") or [] if key == "driver-type"]
    return f"{driver} (containerd)" if any("containerd" in kind for kind in types) else driver


def _failure(path: str, status: int) -> DockerError:
    return DockerError(f"{path}: status {int(status)}")


def epoch(text: str) -> float:
    """Return Docker's 2026-01-31T10:20:30.123456789Z in seconds since the epoch. Python parses six digits at most."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return moment + float(f"0.{fraction or 0}") if moment > 0 else 0.0
