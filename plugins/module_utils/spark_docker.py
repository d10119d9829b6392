"""Docker's HTTP API over its socket, from the standard library alone: a box needs no SDK to be asked."""

from __future__ import annotations

import http.client
import json
import socket
from datetime import datetime
from urllib.parse import quote

SOCKET = "/var/run/docker.sock"
TIMEOUT_S = 20


class DockerError(Exception):
    """The engine does not answer, or answers with an error."""


class _Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(SOCKET)


class Docker:
    """The few read-only questions that facts and probes ask."""

    def get(self, path, missing_ok=False):
        """The JSON of a GET. None for a 404 with missing_ok. Raises DockerError."""
        body = self.raw(path, missing_ok)
        return None if body is None else json.loads(body)

    def raw(self, path, missing_ok=False):
        """The bytes of a GET, as `get`."""
        connection = _Connection("docker")
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            body = reply.read()
        except OSError as error:
            raise DockerError(f"{SOCKET}: {error.strerror or error}") from error
        finally:
            connection.close()
        if reply.status == http.client.NOT_FOUND and missing_ok:
            return None
        if reply.status != http.client.OK:
            raise DockerError(f"{path}: status {reply.status}")
        return body

    def containers(self, label):
        """Containers with a label, running or not: name -> id, image, labels, state, started (epoch seconds)."""
        listed = self.get("/containers/json?all=1&filters=" + quote(json.dumps({"label": [label]})))
        return {entry["Names"][0].lstrip("/"): self.container(entry["Id"]) for entry in listed}

    def container(self, name):
        """One container by name or id, or None."""
        found = self.get(f"/containers/{name}/json", missing_ok=True)
        return found and {
            "id": found["Id"],
            "image": found["Config"]["Image"],
            "image_id": found["Image"],
            "labels": found["Config"]["Labels"] or {},
            "state": found["State"]["Status"],
            "started": epoch(found["State"]["StartedAt"]),
        }


def epoch(text):
    """Docker's 2026-01-31T10:20:30.123456789Z in seconds since the epoch; Python reads six digits at most."""
    whole, _, rest = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    return moment + float(f"0.{rest or 0}") if moment > 0 else 0.0
