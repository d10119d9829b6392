"""Read manifests and blobs from a registry over HTTP. Runs on the host."""

from __future__ import annotations

import base64
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from vllm_spark.node.pull import token_service
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.node.pull.peer_server import PeerLogin

TIMEOUT_S = 30.0
MAX_REPLY_BYTES = 4 << 20
DOCKER_CONFIG = Path.home() / ".docker" / "config.json"


class RefusedByRegistryError(BlobError):
    """An HTTP error status of the registry. A repeated request would get the same one."""


@dataclass(slots=True)
class Upstream:
    """A registry, or the blob server of another Spark.

    `token` is the secret of a run for its blob server, which is never sent. The login of a registry `host` is that of
    `docker login` of this user.
    """

    url: str
    host: str = ""
    token: str = ""
    # Authorization header by repository
    logins: dict[str, str] = field(default_factory=dict)
    peer: PeerLogin | None = None

    def open(self, path: str, accept: str, at: int = 0) -> http.client.HTTPResponse:
        """Return a response to read from byte `at`. Raises BlobError."""
        try:
            return self._open(path, accept, at)
        except urllib.error.HTTPError as error:
            raise RefusedByRegistryError(f"{self.url}{path} answers {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            raise BlobError(f"{self.url}{path}: {getattr(error, 'reason', error)}") from error

    def _open(self, path: str, accept: str, at: int) -> http.client.HTTPResponse:
        repository = path.split("/v2/", 1)[1].rsplit("/", 2)[0]
        for retried in (False, True):
            request = urllib.request.Request(self.url + path, headers={"Accept": accept})  # noqa: S310  the URL is the plan's
            byte_range = f"bytes={at}-" if at else ""
            # A registry redirects to a store that refuses a second login.
            for name, value in self._headers(path, repository, byte_range).items():
                request.add_unredirected_header(name, value)
            if byte_range:
                request.add_header("Range", byte_range)
            try:
                response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.UNAUTHORIZED or retried or self.token:
                    raise
                self.logins[repository] = self._login(error.headers.get("WWW-Authenticate", ""), repository)
            else:
                return response
        raise BlobError(f"{self.url}{path} requires a login")

    def _headers(self, path: str, repository: str, byte_range: str) -> dict[str, str]:
        if not self.token:
            return {"Authorization": self.logins[repository]} if repository in self.logins else {}
        if self.peer is None:
            server = urllib.parse.urlsplit(self.url)
            self.peer = PeerLogin((str(server.hostname), int(server.port or 80)), self.token)
        return self.peer.headers(path, byte_range)

    def _login(self, challenge: str, repository: str) -> str:
        """Return the Authorization header for a challenge (distribution.github.io/distribution/spec/auth/token)."""
        kind, _, parameters = challenge.partition(" ")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', parameters))
        password = _docker_login(self.host)
        if kind.lower() == "basic" and password:
            return f"Basic {password}"
        if kind.lower() != "bearer" or "realm" not in fields:
            raise BlobError(f"{self.url} requires the login {challenge[:100]!r}, and this host has none")
        if why := token_service.objection(fields["realm"], self.url, login=bool(password)):
            raise BlobError(f"the token service {fields['realm'][:100]!r} of {self.url} {why}")
        query = urllib.parse.urlencode(
            {"service": fields.get("service", ""), "scope": fields.get("scope", f"repository:{repository}:pull")}
        )
        request = urllib.request.Request(f"{fields['realm']}?{query}")  # noqa: S310
        if password:
            request.add_unredirected_header("Authorization", f"Basic {password}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            reply = json.loads(response.read(MAX_REPLY_BYTES))
        return f"Bearer {reply.get('token') or reply.get('access_token')}"


def _docker_login(host: str) -> str:
    """Return base64 of user:password that `docker login` stored for a registry, or an empty string."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        logins = json.loads(DOCKER_CONFIG.read_text(encoding="utf-8")).get("auths", {})
        name = "https://index.docker.io/v1/" if host == "docker.io" else host
        login = str(logins.get(name, {}).get("auth", ""))
        base64.b64decode(login, validate=True)
        return login
    return ""
