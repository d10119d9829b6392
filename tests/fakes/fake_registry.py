"""A fake registry with one image and its index. It requires a token and redirects to another address for layers."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from fakes.fake_http import Reply, Request, serving

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
REPOSITORY = "vllm/vllm-openai"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(slots=True)
class Image:
    """An image for linux/arm64, and one for linux/amd64 that no test fetches. `ranges`: the store serves parts."""

    layers: list[bytes] = field(default_factory=lambda: [os.urandom(300_000), os.urandom(50)])
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifest: str = ""
    digest: str = ""
    other_manifest: str = ""
    ranges: bool = True

    def __post_init__(self) -> None:
        self.manifest = self._manifest("arm64", self.layers)
        self.other_manifest = self._manifest("amd64", [os.urandom(20)])
        entries = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": len(self.blobs[digest]),
                "platform": {"os": "linux", "architecture": machine},
            }
            for machine, digest in (("arm64", self.manifest), ("amd64", self.other_manifest))
        ]
        self.digest = self._add(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode())

    def _manifest(self, machine: str, layers: list[bytes]) -> str:
        config = json.dumps({"architecture": machine, "os": "linux"}).encode()
        blobs = [{"digest": self._add(content), "size": len(content)} for content in (config, *layers)]
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": blobs[0], "layers": blobs[1:]}
        return self._add(json.dumps(document).encode())

    def _add(self, content: bytes) -> str:
        self.blobs[digest_of(content)] = content
        return digest_of(content)

    @property
    def name(self) -> str:
        return f"{REPOSITORY}@{self.digest}"

    @property
    def arm_digests(self) -> set[str]:
        """Digests of the index and of everything for linux/arm64."""
        config = json.loads(self.blobs[self.manifest])["config"]["digest"]
        return {self.digest, self.manifest, config, *map(digest_of, self.layers)}


@contextmanager
def registry(image: Image, token: str = "t0") -> Iterator[tuple[str, list[Request]]]:  # noqa: S107  a test's own
    """Serve the image. Yields the URL, and the list of requests so far."""
    url = ""

    def respond(path: str, headers: Mapping[str, str]) -> Reply:
        if path.startswith("/token"):
            return Reply({"token": token})
        if path.startswith("/store/"):
            # The store of a registry refuses a login, because its address is signed.
            if "Authorization" in headers:
                return Reply("two logins", status=400)
            return ranged(image.blobs[path.removeprefix("/store/")], headers if image.ranges else {})
        if headers.get("Authorization") != f"Bearer {token}":
            challenge = f'Bearer realm="{url}/token",service="here"'
            return Reply(status=401, headers={"WWW-Authenticate": challenge})
        return content_of(*path.split("/")[-2:])

    def content_of(kind: str, digest: str) -> Reply:
        if digest not in image.blobs:
            return Reply(status=404)
        if kind == "blobs":
            return Reply(status=307, headers={"Location": f"{url}/store/{digest}"})
        return Reply(image.blobs[digest])

    with serving(respond) as (address, requests):
        url = address
        yield url, requests


def ranged(content: bytes, headers: Mapping[str, str]) -> Reply:
    begin = int(headers.get("Range", "bytes=0-")[6:].rstrip("-"))
    if begin and begin >= len(content):
        return Reply(status=416)
    return Reply(content[begin:], status=206 if begin else 200)


def sent(requests: list[Request]) -> list[str]:
    """Return the digests of the blobs that were sent."""
    return [path.removeprefix("/store/") for path, _ in requests if path.startswith("/store/")]
