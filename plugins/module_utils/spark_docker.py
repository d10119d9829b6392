"""Docker's HTTP API over its socket. Standard library alone: a host needs no SDK."""

from __future__ import annotations

import http.client
import json
import socket
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from vllm_spark.core.types import ContainerFacts

SOCKET = "/var/run/docker.sock"
TIMEOUT_S = 20


class DockerError(Exception):
    """The engine does not answer, or answers with an error."""


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(SOCKET)


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
        connection = _Connection("docker")
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise DockerError(f"{SOCKET}: {getattr(error, 'strerror', None) or error}") from error
        finally:
            connection.close()
        if response.status == http.client.NOT_FOUND:
            return None
        if response.status != http.client.OK:
            raise _failure(path, response.status)
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


def _failure(path: str, status: int) -> DockerError:
    return DockerError(f"{path}: status {int(status)}")


def epoch(text: str) -> float:
    """Return Docker's 2026-01-31T10:20:30.123456789Z in seconds since the epoch. Python parses six digits at most."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return moment + float(f"0.{fraction or 0}") if moment > 0 else 0.0
