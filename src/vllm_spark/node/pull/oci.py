"""OCI images: media types, and the members of an index or a manifest. Runs on the host."""

from __future__ import annotations

import hashlib
import json
from typing import NotRequired, TypedDict

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
MANIFEST_TYPES = (
    INDEX_TYPE,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    MANIFEST_TYPE,
    "application/vnd.docker.distribution.manifest.v2+json",
)
OCI_LAYOUT = '{"imageLayoutVersion": "1.0.0"}\n'


class BlobError(Exception):
    """A blob that is not available, or whose bytes do not match its digest."""


class Platform(TypedDict, total=False):
    """Platform of an image. The attestations of an index have the platform unknown/unknown."""

    os: str
    architecture: str


class Descriptor(TypedDict):
    """A reference to a blob or a manifest: digest, size in bytes, and the platform in an index."""

    digest: str
    size: int
    platform: NotRequired[Platform]


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def members(content: bytes) -> tuple[list[Descriptor], list[Descriptor]]:
    """Return the images of an index and the blobs of a manifest; one of the two lists is empty.

    Raises ValueError or KeyError if the content is invalid.
    """
    document = json.loads(content)
    blobs = [document["config"], *document.get("layers", [])] if "config" in document else []
    return list(document.get("manifests", [])), blobs


def matches_platform(entry: Descriptor, platforms: tuple[str, ...]) -> bool:
    """Return True if an entry of an index is an image for one of the platforms (OS/ARCHITECTURE)."""
    platform = entry.get("platform", Platform())
    return f"{platform.get('os')}/{platform.get('architecture')}" in platforms


def media_type(content: bytes) -> str:
    """Return the media type of an index or a manifest. The field is optional in OCI documents."""
    document = json.loads(content)
    return str(document.get("mediaType") or (INDEX_TYPE if "manifests" in document else MANIFEST_TYPE))
