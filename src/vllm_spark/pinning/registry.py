"""A client of image registries that resolves a tag to the digest for a platform. Nothing is pulled.

The API is that of the OCI distribution specification. Tokens follow Docker's
(distribution.github.io/distribution/spec/auth/token). Credentials are those of `docker login` on this machine.
"""

from __future__ import annotations

import base64
import hashlib
import http
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import requests
from docker import auth as docker_auth  # type: ignore[import-untyped]
from docker.errors import DockerException  # type: ignore[import-untyped]

from vllm_spark.core.refusal import RefusalKind, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.node.pull import token_service
from vllm_spark.pinning.resolution import Resolution

REGISTRY_DOWN = register("registry-down", runbook="image-registry")
REGISTRY_LOGIN = register("registry-login", runbook="image-registry")
REGISTRY_ANSWER = register("registry-answer", runbook="image-registry")
TOKEN_SERVICE = register("token-service", runbook="image-registry")
UNKNOWN_TAG = register("unknown-tag", runbook="image-registry")
WRONG_PLATFORM = register("wrong-platform", runbook="image-platform")

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")

# Timeouts of a whole response and of one read from the socket. A manifest has some kilobytes.
DEADLINE_S = 30.0
READ_TIMEOUT_S = 10.0
MAX_BYTES = 4 << 20

# URLs of registries that do not answer under their own name.
ADDRESSES = {"docker.io": "https://registry-1.docker.io"}


@dataclass(frozen=True, slots=True)
class ImageName:
    """The parts of an image's name: the registry's host, the repository there, and a tag or a digest."""

    host: str
    repository: str
    reference: str

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{'@' if ':' in self.reference else ':'}{self.reference}"


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(slots=True)
class Registry:
    """Client of every registry that the recipes name.

    `addresses` overrides the URL of a registry for this machine: host -> URL. It is needed for plain HTTP, or if this
    machine reaches the registry under another name than the Sparks do.
    """

    addresses: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S
    session: requests.Session = field(default_factory=requests.Session)

    def resolve(self, image: str, reference: str, platforms: Sequence[str]) -> Resolution:
        """Return the digest of a tag or digest for the first of the platforms (`linux/arm64`) that the image has.

        Raises RefusedError.
        """
        name = _name(image, reference)
        response = self._get(name, f"manifests/{reference}", (*INDEXES, *MANIFESTS))
        manifest = _parsed(name, response)
        if manifest.get("mediaType", response.headers.get("Content-Type", "")) in INDEXES or "manifests" in manifest:
            digests = {_platform(entry.get("platform", {})): entry["digest"] for entry in manifest["manifests"]}
        elif "config" in manifest:
            config = self._get(name, f"blobs/{manifest['config']['digest']}", ("*/*",))
            digests = {_platform(_parsed(name, config)): f"sha256:{hashlib.sha256(response.body).hexdigest()}"}
        else:
            raise _refused(REGISTRY_ANSWER, f"{name} is not an image: {response.body[:80]!r}", "an index or a manifest")
        for platform in platforms:
            if platform in digests:
                return Resolution(digests[platform], name.host, platform)
        available = ", ".join(sorted(digests)) or "no platform"
        raise _refused(WRONG_PLATFORM, f"{name} is for {available}", " or ".join(platforms))

    def _get(self, name: ImageName, path: str, accept: Sequence[str]) -> _Response:
        """Send a GET request, with a token if required. Raises RefusedError unless the status is 200."""
        base = self.addresses.get(name.host) or ADDRESSES.get(name.host, f"https://{name.host}")
        url = f"{base.rstrip('/')}/v2/{name.repository}/{path}"
        try:
            headers = {"Accept": ", ".join(accept)}
            response = self._fetch(url, headers)
            if response.status == http.HTTPStatus.UNAUTHORIZED:
                challenge = response.headers.get("WWW-Authenticate", "")
                headers["Authorization"] = self._authorization(name, base, challenge)
                response = self._fetch(url, headers)
        except (requests.RequestException, ValueError, DockerException) as error:
            what = f"the registry of {name} does not answer at {base}: {_reason(error)}"
            raise _refused(REGISTRY_DOWN, what, "a registry that this machine can reach") from error
        if response.status != http.HTTPStatus.OK:
            raise _refusal_of(name, response)
        return response

    def _fetch(
        self,
        url: str,
        headers: Mapping[str, str],
        params: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> _Response:
        """Return a whole response within the deadline. A socket's own timeout restarts with every byte.

        Raises requests.Timeout if the response is late or longer than MAX_BYTES.
        """
        deadline = time.monotonic() + self.deadline_s
        read_timeout = min(READ_TIMEOUT_S, self.deadline_s)
        with self.session.get(
            url, headers=headers, params=params, auth=auth, timeout=read_timeout, stream=True
        ) as response:
            body = bytearray()
            for part in response.iter_content(1 << 16):
                body += part
                if time.monotonic() > deadline or len(body) > MAX_BYTES:
                    limits = f"{self.deadline_s:.0f} s and {MAX_BYTES} B"
                    raise requests.Timeout(f"no whole response of {url} within {limits}")
            return _Response(response.status_code, bytes(body), response.headers)

    def _authorization(self, name: ImageName, base: str, challenge: str) -> str:
        """Return the Authorization header for a challenge: a token of the registry's token service, or the password.

        `base` is the URL of the registry.
        """
        scheme, _, parameters = challenge.partition(" ")
        values = requests.utils.parse_dict_header(parameters)  # type: ignore[no-untyped-call]
        login = docker_auth.load_config().resolve_authconfig(name.host) or {}
        password = (login["username"], login["password"]) if login.get("username") else None
        if scheme.lower() == "basic" and password:
            return f"Basic {base64.b64encode(':'.join(password).encode()).decode()}"
        if scheme.lower() != "bearer" or "realm" not in values:
            return ""
        if why := token_service.objection(values["realm"], base, login=password is not None):
            what = f"the registry of {name} names the token service {values['realm'][:100]!r}, which {why}"
            raise _refused(TOKEN_SERVICE, what, "a token service of the registry's own site over https")
        params = {
            "service": values.get("service", ""),
            "scope": values.get("scope", f"repository:{name.repository}:pull"),
        }
        response = self._fetch(values["realm"], {}, params=params, auth=password)
        if response.status != http.HTTPStatus.OK:
            raise _refusal_of(name, response)
        answer = _parsed(name, response)
        return f"Bearer {answer.get('token') or answer.get('access_token')}"


def _name(image: str, reference: str) -> ImageName:
    host, repository = docker_auth.resolve_repository_name(image)
    # Docker's official images have names without a slash. Its registry has them below `library/`.
    if host == "docker.io" and "/" not in repository:
        repository = f"library/{repository}"
    return ImageName(host, repository, reference)


def _platform(document: Document) -> str:
    """Return e.g. `linux/arm64`. The variant is omitted, because every arm64 that runs CUDA is v8."""
    return f"{document.get('os', 'unknown')}/{document.get('architecture', 'unknown')}"


def _parsed(name: ImageName, response: _Response) -> Document:
    try:
        parsed = json.loads(response.body)
    except (ValueError, RecursionError) as error:
        raise _refused(REGISTRY_ANSWER, f"{name} answered {response.body[:80]!r}", "JSON") from error
    if not isinstance(parsed, Mapping):
        raise _refused(REGISTRY_ANSWER, f"{name} answered {response.body[:80]!r}", "an index or a manifest")
    return parsed


def _reason(error: Exception) -> str:
    """Return the text of the innermost error. requests wraps an error three times."""
    while error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    return " ".join(str(getattr(error, "reason", error)).split())


def _refusal_of(name: ImageName, response: _Response) -> RefusedError:
    if response.status == http.HTTPStatus.NOT_FOUND:
        return _refused(UNKNOWN_TAG, f"{name} is not in its registry (status 404)", "a tag or digest in the registry")
    if response.status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
        what = f"the registry of {name} requires a login, or does not have it (status {response.status})"
        return _refused(REGISTRY_LOGIN, what, "an image that this machine's `docker login` may read")
    text = " ".join(response.body[:200].decode(errors="replace").split())
    return _refused(REGISTRY_DOWN, f"the registry of {name} answered status {response.status}: {text}", "status 200")


_FIXES: Mapping[RefusalKind, str] = {
    REGISTRY_DOWN: "ansible-playbook lock.yml again when it answers; vllm_registries sets its URL for this machine.",
    REGISTRY_LOGIN: "docker login REGISTRY on this machine, or correct image.repository of the recipe.",
    TOKEN_SERVICE: "ask the owner of the registry; docker logout REGISTRY on this machine asks without a login.",
    REGISTRY_ANSWER: "name an image in image.repository of the recipe.",
    UNKNOWN_TAG: "correct image.repository and image.tag (or image.digest) of the recipe.",
    WRONG_PLATFORM: "name a tag or digest that has this platform, or correct image.platforms of the recipe.",
}


def _refused(kind: RefusalKind, what: str, expected: str) -> RefusedError:
    return RefusedError([kind(what=what, expected=expected, fix=_FIXES[kind])])
