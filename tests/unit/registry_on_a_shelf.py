"""A registry with one image, index and all, that wants a token and sends its layers from another address: what the
tests of shelves and bundles pull from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from stand_in import Asked, Reply, serving

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
REPOSITORY = "vllm/vllm-openai"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(slots=True)
class Image:
    """An image for linux/arm64 beside one for another machine, which nobody shall fetch."""

    layers: list[bytes] = field(default_factory=lambda: [os.urandom(300_000), os.urandom(50)])
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifest: str = ""
    digest: str = ""
    other: str = ""

    def __post_init__(self) -> None:
        self.manifest = self._manifest("arm64", self.layers)
        self.other = self._manifest("amd64", [os.urandom(20)])
        entries = [
            {
                "mediaType": MANIFEST,
                "digest": digest,
                "size": len(self.blobs[digest]),
                "platform": {"os": "linux", "architecture": machine},
            }
            for machine, digest in (("arm64", self.manifest), ("amd64", self.other))
        ]
        self.digest = self._keep(json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode())

    def _manifest(self, machine: str, layers: list[bytes]) -> str:
        config = json.dumps({"architecture": machine, "os": "linux"}).encode()
        kept = [{"digest": self._keep(content), "size": len(content)} for content in (config, *layers)]
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": kept[0], "layers": kept[1:]}
        return self._keep(json.dumps(document).encode())

    def _keep(self, content: bytes) -> str:
        self.blobs[digest_of(content)] = content
        return digest_of(content)

    @property
    def name(self) -> str:
        return f"{REPOSITORY}@{self.digest}"

    @property
    def wanted(self) -> set[str]:
        """What belongs to linux/arm64."""
        config = json.loads(self.blobs[self.manifest])["config"]["digest"]
        return {self.digest, self.manifest, config, *map(digest_of, self.layers)}


@contextmanager
def registry(image: Image, token: str = "t0") -> Iterator[tuple[str, list[Asked]]]:  # noqa: S107  a test's own
    """(its URL, what it was asked)."""
    url = ""

    def answers(path: str, headers: Mapping[str, str]) -> Reply:
        if path.startswith("/token"):
            return Reply({"token": token})
        if path.startswith("/store/"):
            # As a registry's store does: a login on top of its signed address is an error.
            if "Authorization" in headers:
                return Reply("two logins", status=400)
            return ranged(image.blobs[path.removeprefix("/store/")], headers)
        if headers.get("Authorization") != f"Bearer {token}":
            challenge = f'Bearer realm="{url}/token",service="here"'
            return Reply(status=401, headers={"WWW-Authenticate": challenge})
        return known(*path.split("/")[-2:])

    def known(kind: str, digest: str) -> Reply:
        if digest not in image.blobs:
            return Reply(status=404)
        if kind == "blobs":
            return Reply(status=307, headers={"Location": f"{url}/store/{digest}"})
        return Reply(image.blobs[digest])

    with serving(answers) as (address, asked):
        url = address
        yield url, asked


def ranged(content: bytes, headers: Mapping[str, str]) -> Reply:
    begin = int(headers.get("Range", "bytes=0-")[6:].rstrip("-"))
    return Reply(content[begin:], status=206 if begin else 200)


def sent(asked: list[Asked]) -> list[str]:
    """The blobs whose bytes were sent."""
    return [path.removeprefix("/store/") for path, _ in asked if path.startswith("/store/")]
