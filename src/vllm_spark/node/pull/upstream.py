"""Read manifests and blobs of one repository from a registry or from another Spark over HTTP.

Runs on the host, and on the controller for `lock` and for a bundle.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

from vllm_spark.node.pull import token_service
from vllm_spark.node.pull.oci import BlobError
from vllm_spark.node.pull.peer_server import PeerLogin

TIMEOUT_S = 30.0
MAX_REPLY_BYTES = 4 << 20
DOCKER_HUB, DOCKER_HUB_URL = "docker.io", "https://registry-1.docker.io"
TOKEN = re.compile(r"[\w.~+/=-]+", re.ASCII)  # RFC 6750, section 2.1
DOCKER_CONFIG = Path.home() / ".docker" / "config.json"
# The certificates of registries that Docker itself accepts: HOST/*.crt.
DOCKER_CERTS = Path("/etc/docker/certs.d")


class RefusedByRegistryError(BlobError):
    """An HTTP error of the registry, which a repeated request would get again. `text` is the start of its body."""

    def __init__(self, message: str, status: int, text: str = "") -> None:
        super().__init__(message)
        self.status, self.text = status, text


class TokenServiceError(RefusedByRegistryError):
    """A token service that must not be asked, or that gives no token: `realm`, and the reason `why`."""

    def __init__(self, realm: str, registry: str, why: str) -> None:
        self.realm, self.why = realm[:100], why
        super().__init__(f"the token service {self.realm!r} of {registry} {why}", HTTPStatus.UNAUTHORIZED)


def docker_login(host: str) -> str:
    """Return base64 of user:password that `docker login` stored for a registry, or an empty string."""
    with suppress(TypeError, AttributeError, ValueError):
        login = str(_docker_config("auths").get(_login_name(host), {}).get("auth", ""))
        base64.b64decode(login, validate=True)
        return login
    return ""


def helper_note(host: str) -> str:
    """Return what an operator must know if Docker's client has a credential helper for a registry; else an empty text.

    A helper is a program of a user's session, which a service of root does not have.
    """
    with suppress(TypeError, AttributeError):
        if helper := _docker_config("credHelpers").get(_login_name(host)) or _docker_config("credsStore"):
            return (
                f"Docker's credential helper {str(helper)[:60]!r} is configured for {host} and a pull does not use it: "
                f"a private image needs its login in `auths` of {DOCKER_CONFIG}"
            )
    return ""


def _login_name(host: str) -> str:
    return "https://index.docker.io/v1/" if host == DOCKER_HUB else host


def _docker_config(key: str) -> Any:
    try:
        return json.loads(DOCKER_CONFIG.read_text(encoding="utf-8")).get(key, {})
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


@dataclass
class Upstream:
    """A repository of a registry, or of the blob server of another Spark.

    `token` is the secret of a run for its blob server, which is never sent. `login_of` returns this machine's login of
    a registry `host`. `authorities` are files or folders of certificates beside those of the system.
    """

    url: str
    repository: str
    host: str = ""
    token: str = ""
    login_of: Callable[[str], str] = docker_login
    authorities: tuple[Path | str, ...] = ()
    timeout_s: float = TIMEOUT_S
    login: str = field(default="", init=False)

    def open(self, kind: str, digest: str, accept: str = "*/*", at: int = 0) -> http.client.HTTPResponse:
        """Return a response to read from byte `at`; `kind` is manifests or blobs. Raises BlobError."""
        path = f"/v2/{self.repository}/{kind}/{digest}"
        try:
            return self._open(path, {"Accept": accept}, f"bytes={at}-" if at else "")
        except urllib.error.HTTPError as error:
            raise RefusedByRegistryError(f"{self.url}{path} answers {error.code}", error.code, _start(error)) from error
        except (OSError, http.client.HTTPException) as error:
            raise BlobError(f"{self.url}{path}: {getattr(error, 'reason', error)}") from error

    def _open(self, path: str, headers: dict[str, str], byte_range: str) -> http.client.HTTPResponse:
        for retried in (False, True):
            more = {"Range": byte_range} if byte_range else {}
            request = urllib.request.Request(self.url + path, headers=headers | more)  # noqa: S310  the URL is the plan's
            # A registry redirects to a store that refuses a second login.
            for name, value in self._login_headers(path, byte_range).items():
                request.add_unredirected_header(name, value)
            try:
                response: http.client.HTTPResponse = self._opener.open(request, timeout=self.timeout_s)
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.UNAUTHORIZED or retried or self.token:
                    raise
                self.login = self._answer(", ".join(error.headers.get_all("WWW-Authenticate", [])))
            else:
                return response
        raise BlobError(f"{self.url}{path} requires a login")

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        """Another Spark is reached directly; a registry by the certificates and the proxy of this host."""
        if self.token:
            return urllib.request.build_opener(urllib.request.ProxyHandler({}))
        context = ssl.create_default_context()
        for file in [*self.authorities, *(sorted((DOCKER_CERTS / self.host).glob("*.crt")) if self.host else [])]:
            context.load_verify_locations(None, file) if Path(file).is_dir() else context.load_verify_locations(file)
        return urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    @cached_property
    def _peer(self) -> PeerLogin:
        server = urllib.parse.urlsplit(self.url)
        return PeerLogin((str(server.hostname), int(server.port or 80)), self.token)

    def _login_headers(self, path: str, byte_range: str) -> dict[str, str]:
        if self.token:
            return self._peer.headers(path, byte_range)
        return {"Authorization": self.login} if self.login else {}

    def _answer(self, challenges: str) -> str:
        """Return the Authorization header for challenges (distribution.github.io/distribution/spec/auth/token).

        Like containerd, it asks a token service rather than send the password to the registry. Raises BlobError.
        """
        asked = token_service.parameters_by_scheme(challenges)
        fields = asked.get("bearer", {})
        password = self.login_of(self.host)
        realm = fields.get("realm", "")
        if not realm:
            if password and "basic" in asked:
                return f"Basic {password}"
            message = f"{self.url} requires the login {challenges[:100]!r}, and this host has none"
            raise RefusedByRegistryError(message, HTTPStatus.UNAUTHORIZED)
        if why := token_service.objection(realm, self.url, login=bool(password)):
            raise TokenServiceError(realm, self.url, why)
        query = {"service": fields.get("service"), "scope": fields.get("scope") or f"repository:{self.repository}:pull"}
        words = urllib.parse.urlencode({name: value for name, value in query.items() if value})
        request = urllib.request.Request(f"{realm}{'&' if '?' in realm else '?'}{words}")  # noqa: S310  judged above
        if password:
            request.add_unredirected_header("Authorization", f"Basic {password}")
        with self._opener.open(request, timeout=self.timeout_s) as response:
            body = response.read(MAX_REPLY_BYTES + 1)
        with suppress(ValueError, AttributeError, RecursionError):
            reply = json.loads(body) if len(body) <= MAX_REPLY_BYTES else {}
            token = str(reply.get("token") or reply.get("access_token") or "")
            if TOKEN.fullmatch(token):
                return f"Bearer {token}"
        raise TokenServiceError(realm, self.url, "gives no token")


def _start(error: urllib.error.HTTPError) -> str:
    with suppress(OSError, http.client.HTTPException):
        return error.read(200).decode(errors="replace")
    return ""


def registry_of(host: str, engine: Mapping[str, Any]) -> tuple[str, str]:
    """Return the URL of a registry, as this host's Docker (`docker info`) would reach it, and the host of its login.

    That is plain HTTP if Docker is configured for it, and for Docker Hub the first of Docker's mirrors that answers. A
    mirror does not get the login of Docker Hub.
    """
    config = engine.get("RegistryConfig") or {}
    if host == DOCKER_HUB:
        mirrors = (str(mirror).rstrip("/") for mirror in config.get("Mirrors") or [])
        mirror = next(filter(_answers, mirrors), "")
        return (mirror, urllib.parse.urlsplit(mirror).netloc) if mirror else (DOCKER_HUB_URL, host)
    secure = (config.get("IndexConfigs") or {}).get(host, {}).get("Secure", True)
    return f"{'https' if secure else 'http'}://{host}", host


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/v2/", timeout=TIMEOUT_S).close()  # noqa: S310  a mirror of Docker's own settings
    except urllib.error.HTTPError:
        return True
    except (OSError, http.client.HTTPException):
        return False
    return True
