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
# A parameter of a challenge; some registries leave the quotes out.
PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s",]+))')
TOKEN = re.compile(r"[\w.~+/=-]+", re.ASCII)  # RFC 6750, section 2.1
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
        """Return the Authorization header for a challenge (distribution.github.io/distribution/spec/auth/token).

        Raises BlobError.
        """
        kind, _, parameters = challenge.partition(" ")
        fields = {name: quoted or bare for name, quoted, bare in PARAMETER.findall(parameters)}
        password = _docker_login(self.host)
        if kind.lower() == "basic" and password:
            return f"Basic {password}"
        realm = fields.get("realm", "")
        if kind.lower() != "bearer" or not realm:
            raise BlobError(f"{self.url} requires the login {challenge[:100]!r}, and this host has none")
        if why := token_service.objection(realm, self.url, login=bool(password)):
            raise BlobError(f"the token service {realm[:100]!r} of {self.url} {why}")
        query = {"service": fields.get("service"), "scope": fields.get("scope") or f"repository:{repository}:pull"}
        words = urllib.parse.urlencode({name: value for name, value in query.items() if value})
        token = _token(f"{realm}{'&' if '?' in realm else '?'}{words}", password)
        if not token:
            raise BlobError(f"the token service {realm[:100]!r} of {self.url} gives no token")
        return f"Bearer {token}"


def _token(url: str, password: str) -> str:
    """Return the token that a service gives, or an empty string if its reply has none."""
    request = urllib.request.Request(url)  # noqa: S310  token_service has judged it
    if password:
        request.add_unredirected_header("Authorization", f"Basic {password}")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
        body = response.read(MAX_REPLY_BYTES + 1)
    with suppress(ValueError, AttributeError, RecursionError):
        reply = json.loads(body) if len(body) <= MAX_REPLY_BYTES else {}
        token = str(reply.get("token") or reply.get("access_token") or "")
        return token if TOKEN.fullmatch(token) else ""
    return ""


def _docker_login(host: str) -> str:
    """Return base64 of user:password that `docker login` stored for a registry, or an empty string."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        logins = json.loads(DOCKER_CONFIG.read_text(encoding="utf-8")).get("auths", {})
        name = "https://index.docker.io/v1/" if host == "docker.io" else host
        login = str(logins.get(name, {}).get("auth", ""))
        base64.b64decode(login, validate=True)
        return login
    return ""
