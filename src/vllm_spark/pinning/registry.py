"""Resolution of a tag to the digest for a platform at an image registry. Nothing is pulled.

node/pull/upstream.py asks the registry. Credentials are those of `docker login` on this machine, also from a credential
helper.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import certifi
from docker import auth as docker_auth  # type: ignore[import-untyped]
from docker.errors import DockerException  # type: ignore[import-untyped]

from vllm_spark.core.refusal import Fix, RefusalKind, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.node.pull.oci import MANIFEST_TYPES, BlobError, digest_of
from vllm_spark.node.pull.upstream import (
    DOCKER_HUB,
    DOCKER_HUB_URL,
    TIMEOUT_S,
    RefusedByRegistryError,
    TokenServiceError,
    Upstream,
)
from vllm_spark.pinning.resolution import Resolution
from vllm_spark.recipe import image_name

REGISTRY_DOWN = register("registry-down", runbook="image-registry")
REGISTRY_LOGIN = register("registry-login", runbook="image-registry")
REGISTRY_ANSWER = register("registry-answer", runbook="image-registry")
TOKEN_SERVICE = register("token-service", runbook="image-registry")
UNKNOWN_TAG = register("unknown-tag", runbook="image-registry")
WRONG_PLATFORM = register("wrong-platform", runbook="image-platform")

# Timeouts of a whole response and of one read from the socket. A manifest has some kilobytes.
DEADLINE_S = 30.0
READ_TIMEOUT_S = 10.0
MAX_BYTES = 4 << 20


def docker_login(host: str) -> str:
    """Return base64 of this machine's user:password at a registry, or an empty string.

    Raises BlobError for a credential helper that fails.
    """
    try:
        login = docker_auth.load_config().resolve_authconfig(host) or {}
    except DockerException as error:
        raise BlobError(f"the login of {host}: {error}") from error
    user = login.get("username")
    return base64.b64encode(f"{user}:{login['password']}".encode()).decode() if user else ""


def upstream(
    host: str,
    repository: str,
    addresses: Mapping[str, str],
    timeout_s: float = TIMEOUT_S,
    login_of: Callable[[str], str] = docker_login,
) -> Upstream:
    """Return a repository as this machine reaches it. `addresses`: host -> URL of registries with another address."""
    url = addresses.get(host) or (DOCKER_HUB_URL if host == DOCKER_HUB else f"https://{host}")
    # Not every system of a controller has certificates that Python finds. The variable is that of requests and of pip.
    authorities = (os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where(),)
    return Upstream(url.rstrip("/"), repository, host, login_of=login_of, authorities=authorities, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class ImageName:
    """The parts of an image's name: the registry's host, the repository there, and a tag or a digest."""

    host: str
    repository: str
    reference: str

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{'@' if ':' in self.reference else ':'}{self.reference}"


@dataclass(slots=True)
class Registry:
    """Client of every registry that the recipes name.

    `addresses` overrides the URL of a registry for this machine: host -> URL. It is needed for plain HTTP, or if this
    machine reaches the registry under another name than the Sparks do. `login_of` returns the login of a host.
    """

    addresses: Mapping[str, str] = field(default_factory=dict)
    login_of: Callable[[str], str] = docker_login
    deadline_s: float = DEADLINE_S

    def resolve(self, image: str, reference: str, platforms: Sequence[str]) -> Resolution:
        """Return the digest of a tag or digest for the first of the platforms (`linux/arm64`) that the image has.

        Raises RefusedError.
        """
        name = ImageName(*image_name.split(image), reference)
        content = self._get(name, "manifests", reference)
        manifest = _parsed(name, content)
        if "manifests" in manifest:
            digests = {_platform(entry.get("platform", {})): entry["digest"] for entry in manifest["manifests"]}
        elif "config" in manifest:
            config = self._get(name, "blobs", manifest["config"]["digest"])
            digests = {_platform(_parsed(name, config)): digest_of(content)}
        else:
            raise _refused(REGISTRY_ANSWER, f"{name} is not an image: {content[:80]!r}", "an index or a manifest")
        for platform in platforms:
            if platform in digests:
                return Resolution(digests[platform], name.host, platform)
        available = ", ".join(sorted(digests)) or "no platform"
        raise _refused(WRONG_PLATFORM, f"{name} is for {available}", " or ".join(platforms))

    def _get(self, name: ImageName, kind: str, reference: str) -> bytes:
        """Return the manifest or the blob. Raises RefusedError."""
        limit_s = min(READ_TIMEOUT_S, self.deadline_s)
        registry = upstream(name.host, name.repository, self.addresses, limit_s, self.login_of)
        accept = ", ".join(MANIFEST_TYPES) if kind == "manifests" else "*/*"
        try:
            with registry.open(kind, reference, accept) as response:
                return self._body(response)
        except TokenServiceError as error:
            what = f"the registry of {name} names the token service {error.realm!r}, which {error.why}"
            raise _refused(TOKEN_SERVICE, what, "a token service of the registry's own site over https") from error
        except RefusedByRegistryError as error:
            raise _refusal_of(name, error) from error
        except (BlobError, OSError, http.client.HTTPException, ValueError) as error:
            cause = error.__cause__ or error
            reason = " ".join(str(getattr(cause, "reason", cause)).split())
            what = f"the registry of {name} does not answer at {registry.url}: {reason}"
            raise _refused(REGISTRY_DOWN, what, "a registry that this machine can reach") from error

    def _body(self, response: http.client.HTTPResponse) -> bytes:
        """Return a whole body within the deadline, because a socket's own timeout restarts with every byte.

        Raises BlobError if it is late, longer than MAX_BYTES, or cut off.
        """
        deadline, body = time.monotonic() + self.deadline_s, bytearray()
        while part := response.read1(1 << 16):
            body += part
            if time.monotonic() > deadline or len(body) > MAX_BYTES:
                raise BlobError(f"no whole response within {self.deadline_s:.0f} s and {MAX_BYTES} B")
        if response.length:
            raise BlobError(f"the response ended {response.length} B early")
        return bytes(body)


def _platform(document: Document) -> str:
    """Return e.g. `linux/arm64`. The variant is omitted, because every arm64 that runs CUDA is v8."""
    return f"{document.get('os', 'unknown')}/{document.get('architecture', 'unknown')}"


def _parsed(name: ImageName, content: bytes) -> Document:
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _refused(REGISTRY_ANSWER, f"{name} answered {content[:80]!r}", "JSON") from error
    if not isinstance(parsed, Mapping):
        raise _refused(REGISTRY_ANSWER, f"{name} answered {content[:80]!r}", "an index or a manifest")
    return parsed


def _refusal_of(name: ImageName, error: RefusedByRegistryError) -> RefusedError:
    if error.status == http.HTTPStatus.NOT_FOUND:
        return _refused(UNKNOWN_TAG, f"{name} is not in its registry (status 404)", "a tag or digest in the registry")
    if error.status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
        what = f"the registry of {name} requires a login, or does not have it (status {error.status})"
        return _refused(REGISTRY_LOGIN, what, "an image that this machine's `docker login` may read")
    text = " ".join(error.text.split())
    return _refused(REGISTRY_DOWN, f"the registry of {name} answered status {error.status}: {text}", "status 200")


_FIXES: Mapping[RefusalKind, str | Fix] = {
    REGISTRY_DOWN: Fix(
        "ansible-playbook lock.yml",
        "It needs an answer of that registry; vllm_registries sets its URL for this machine.",
    ),
    REGISTRY_LOGIN: Fix("docker login REGISTRY", "On this machine. Or correct image.repository of the recipe."),
    TOKEN_SERVICE: "ask the owner of the registry; after `docker logout REGISTRY` this machine asks without a login.",
    REGISTRY_ANSWER: "name an image in image.repository of the recipe.",
    UNKNOWN_TAG: "correct image.repository and image.tag (or image.digest) of the recipe.",
    WRONG_PLATFORM: "name a tag or digest that has this platform, or correct image.platforms of the recipe.",
}


def _refused(kind: RefusalKind, what: str, expected: str) -> RefusedError:
    return RefusedError([kind(what=what, expected=expected, fix=_FIXES[kind])])
