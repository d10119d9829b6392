"""A registry of images, asked over HTTP: what a tag means for a platform, without pulling anything.

The registry's API is the OCI distribution specification's; how it hands out tokens is Docker's
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
from typing import Any

import requests
from docker import auth as docker_auth  # type: ignore[import-untyped]
from docker.errors import DockerException  # type: ignore[import-untyped]

from vllm_spark.core.refusal import RefusalKind, RefusedError, register
from vllm_spark.recipe.lockfile import Resolution

REGISTRY_DOWN = register("registry-down", runbook="image-registry")
REGISTRY_LOGIN = register("registry-login", runbook="image-registry")
REGISTRY_ANSWER = register("registry-answer", runbook="image-registry")
UNKNOWN_TAG = register("unknown-tag", runbook="image-registry")
WRONG_PLATFORM = register("wrong-platform", runbook="image-platform")

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")

# The whole of one answer, and of one step of it. A manifest has some kilobytes.
DEADLINE_S = 30.0
STEP_S = 10.0
MAX_BYTES = 4 << 20

# Where a registry answers, for those that do not answer under their own name.
ADDRESSES = {"docker.io": "https://registry-1.docker.io"}


@dataclass(frozen=True, slots=True)
class Name:
    """An image's name in parts: who has it, the repository there, and a tag or a digest."""

    host: str
    repository: str
    reference: str

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}{'@' if ':' in self.reference else ':'}{self.reference}"


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(slots=True)
class Registry:
    """Every registry that the recipes name. `addresses` says where one answers for this machine, host -> URL, for
    plain HTTP or another name than the Sparks know."""

    addresses: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = DEADLINE_S
    session: requests.Session = field(default_factory=requests.Session)

    def resolve(self, image: str, reference: str, platforms: Sequence[str]) -> Resolution:
        """The digest of a tag, or of a digest, for the first of the platforms (`linux/arm64`) that it has. Raises
        RefusedError."""
        name = _name(image, reference)
        reply = self._get(name, f"manifests/{reference}", (*INDEXES, *MANIFESTS))
        manifest = _parsed(name, reply)
        if manifest.get("mediaType", reply.headers.get("Content-Type", "")) in INDEXES or "manifests" in manifest:
            found = {_platform(entry.get("platform", {})): entry["digest"] for entry in manifest["manifests"]}
        elif "config" in manifest:
            config = self._get(name, f"blobs/{manifest['config']['digest']}", ("*/*",))
            found = {_platform(_parsed(name, config)): f"sha256:{hashlib.sha256(reply.body).hexdigest()}"}
        else:
            raise _refused(REGISTRY_ANSWER, f"{name} is no image: {reply.body[:80]!r}", "an index or a manifest")
        for platform in platforms:
            if platform in found:
                return Resolution(found[platform], name.host, platform)
        shown = ", ".join(sorted(found)) or "no platform"
        raise _refused(WRONG_PLATFORM, f"{name} is for {shown}", " or ".join(platforms))

    def _get(self, name: Name, path: str, accept: Sequence[str]) -> _Reply:
        """One GET, with a token where the registry wants one. Raises RefusedError for anything but 200."""
        base = self.addresses.get(name.host) or ADDRESSES.get(name.host, f"https://{name.host}")
        url = f"{base.rstrip('/')}/v2/{name.repository}/{path}"
        try:
            headers = {"Accept": ", ".join(accept)}
            reply = self._fetch(url, headers)
            if reply.status == http.HTTPStatus.UNAUTHORIZED:
                headers["Authorization"] = self._authorization(name, reply.headers.get("WWW-Authenticate", ""))
                reply = self._fetch(url, headers)
        except (requests.RequestException, ValueError, DockerException) as error:
            what = f"the registry of {name} does not answer at {base}: {_reason(error)}"
            raise _refused(REGISTRY_DOWN, what, "an answer from this machine") from error
        if reply.status != http.HTTPStatus.OK:
            raise _refusal_of(name, reply)
        return reply

    def _fetch(self, url: str, headers: Mapping[str, str], **more: Any) -> _Reply:
        """A whole answer within the deadline: a socket's own timeout starts anew with every byte."""
        until = time.monotonic() + self.deadline_s
        step = min(STEP_S, self.deadline_s)
        with self.session.get(url, headers=headers, timeout=step, stream=True, **more) as reply:
            body = bytearray()
            for part in reply.iter_content(1 << 16):
                body += part
                if time.monotonic() > until or len(body) > MAX_BYTES:
                    raise requests.Timeout(f"no whole answer of {url} within {self.deadline_s:.0f} s and {MAX_BYTES} B")
            return _Reply(reply.status_code, bytes(body), reply.headers)

    def _authorization(self, name: Name, challenge: str) -> str:
        """The header that answers a challenge: a token that the registry's own service gives, or the password."""
        kind, _, parameters = challenge.partition(" ")
        given = requests.utils.parse_dict_header(parameters)  # type: ignore[no-untyped-call]
        login = docker_auth.load_config().resolve_authconfig(name.host) or {}
        password = (login["username"], login["password"]) if login.get("username") else None
        if kind.lower() == "basic" and password:
            return f"Basic {base64.b64encode(':'.join(password).encode()).decode()}"
        if kind.lower() != "bearer" or "realm" not in given:
            return ""
        asked = {
            "service": given.get("service", ""),
            "scope": given.get("scope", f"repository:{name.repository}:pull"),
        }
        reply = self._fetch(given["realm"], {}, params=asked, auth=password)
        if reply.status != http.HTTPStatus.OK:
            raise _refusal_of(name, reply)
        answer = json.loads(reply.body)
        return f"Bearer {answer.get('token') or answer.get('access_token')}"


def _name(image: str, reference: str) -> Name:
    host, repository = docker_auth.resolve_repository_name(image)
    # Docker's own names have one word; its registry keeps them in a folder.
    return Name(
        host, f"library/{repository}" if host == "docker.io" and "/" not in repository else repository, reference
    )


def _platform(described: Mapping[str, Any]) -> str:
    """`linux/arm64`. The variant is left out: every arm64 that runs CUDA is v8."""
    return f"{described.get('os', 'unknown')}/{described.get('architecture', 'unknown')}"


def _parsed(name: Name, reply: _Reply) -> Mapping[str, Any]:
    try:
        parsed = json.loads(reply.body)
    except ValueError as error:
        raise _refused(REGISTRY_ANSWER, f"{name} answers {reply.body[:80]!r}", "JSON") from error
    if not isinstance(parsed, Mapping):
        raise _refused(REGISTRY_ANSWER, f"{name} answers {reply.body[:80]!r}", "an index or a manifest")
    return parsed


def _reason(error: Exception) -> str:
    """The innermost words: requests wraps them three times."""
    while error.args and isinstance(error.args[0], Exception):
        error = error.args[0]
    return " ".join(str(getattr(error, "reason", error)).split())


def _refusal_of(name: Name, reply: _Reply) -> RefusedError:
    if reply.status == http.HTTPStatus.NOT_FOUND:
        return _refused(UNKNOWN_TAG, f"{name} is not in its registry (status 404)", "a tag or digest that it has")
    if reply.status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
        what = f"the registry of {name} wants a login, or does not have it (status {reply.status})"
        return _refused(REGISTRY_LOGIN, what, "an image that this machine's `docker login` may read")
    said = " ".join(reply.body[:200].decode(errors="replace").split())
    return _refused(REGISTRY_DOWN, f"the registry of {name} answers status {reply.status}: {said}", "status 200")


_FIXES: Mapping[RefusalKind, str] = {
    REGISTRY_DOWN: "ansible-playbook lock.yml again when it answers; vllm_registries says where one is reached.",
    REGISTRY_LOGIN: "docker login REGISTRY on this machine, or correct image.repository of the recipe.",
    REGISTRY_ANSWER: "name an image in image.repository of the recipe.",
    UNKNOWN_TAG: "correct image.repository and image.tag (or image.digest) of the recipe.",
    WRONG_PLATFORM: "name a tag or digest that has this platform, or correct image.platforms of the recipe.",
}


def _refused(kind: RefusalKind, what: str, expected: str) -> RefusedError:
    return RefusedError([kind(what=what, expected=expected, fix=_FIXES[kind])])
