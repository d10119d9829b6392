"""The identity of an image: equal on two hosts with the same image, in whichever store each Docker keeps it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from project_files import load_module
from vllm_spark.node.supervise import identity

load_module("spark_facts")
DOCKER = sys.modules["ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker"]

DIGEST = f"sha256:{'8' * 64}"
PULLED = f"vllm/vllm-openai@{DIGEST}"
DERIVED = "vllm-spark/gemma:0123456789ab"
LAYERS = ["sha256:base", "sha256:patch"]
ENV = ["PATH=/usr/bin", "VLLM_USE_FLASHINFER=1"]


def overlay2(name: str, **changes: Any) -> dict[str, Any]:
    """Return `docker inspect` of an image in overlay2: the id is the digest of the configuration, and the empty fields
    of the configuration are listed."""
    return {
        "Id": "sha256:configuration",
        "RepoTags": [] if "@" in name else [name],
        "RepoDigests": [name] if "@" in name else [],
        "Os": "linux",
        "Architecture": "arm64",
        "Config": {"Env": ENV, "Cmd": None, "Entrypoint": ["vllm", "serve"], "Image": "sha256:parent", "Volumes": None},
        "RootFS": {"Type": "layers", "Layers": LAYERS},
        **changes,
    }


def containerd(name: str, **changes: Any) -> dict[str, Any]:
    """Return the same image in the containerd store: the id is the digest of the index or manifest, a tag has a digest
    as well, and empty fields are absent."""
    digest = DIGEST if "@" in name else "sha256:manifest"
    return {
        "Id": digest,
        "Descriptor": {"digest": digest},
        "RepoTags": [] if "@" in name else [name],
        "RepoDigests": [f"{name.partition('@')[0].rpartition(':')[0] or name.partition('@')[0]}@{digest}"],
        "Os": "linux",
        "Architecture": "arm64",
        "Config": {"Env": ENV, "Entrypoint": ["vllm", "serve"]},
        "RootFS": {"Type": "layers", "Layers": LAYERS},
        **changes,
    }


@pytest.mark.parametrize("name", [PULLED, DERIVED])
def test_one_image_in_two_stores_is_equal(name: str) -> None:
    one, other = overlay2(name), containerd(name)
    assert one["Id"] != other["Id"]
    assert DOCKER.identity(name, one) == DOCKER.identity(name, other)


# name -> (name of the image, what differs in the containerd store)
UNEQUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "another layer": (DERIVED, {"RootFS": {"Type": "layers", "Layers": [LAYERS[0], "sha256:other"]}}),
    "another variable": (DERIVED, {"Config": {"Env": [*ENV, "X=1"], "Entrypoint": ["vllm", "serve"]}}),
    "another entry point": (DERIVED, {"Config": {"Env": ENV, "Entrypoint": ["sh"]}}),
    "another machine": (PULLED, {"Architecture": "amd64"}),
}


@pytest.mark.parametrize("case", UNEQUAL)
def test_two_images_in_two_stores_are_unequal(case: str) -> None:
    name, changes = UNEQUAL[case]
    assert DOCKER.identity(name, overlay2(name)) != DOCKER.identity(name, containerd(name, **changes))


def test_an_image_without_its_packed_layers_is_incomplete() -> None:
    reduced = containerd(DERIVED, Config=None, RootFS={}, Os="", Architecture="")
    assert DOCKER.identity(DERIVED, reduced) == "incomplete: sha256:manifest"
    assert DOCKER.identity(DERIVED, reduced) != DOCKER.identity(DERIVED, containerd(DERIVED))
    reduced = containerd(PULLED, Config=None, RootFS={}, Os="", Architecture="")
    assert DOCKER.identity(PULLED, reduced, "linux/arm64") == DOCKER.identity(PULLED, overlay2(PULLED))


def test_a_pulled_image_is_identified_by_its_digest() -> None:
    assert DOCKER.identity(PULLED, overlay2(PULLED)) == f"{DIGEST} for linux/arm64"


@pytest.mark.parametrize(
    ("info", "store"),
    [
        ({"Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]]}, "overlay2"),
        (
            {"Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]},
            "overlayfs (containerd)",
        ),
        ({}, ""),
    ],
)
def test_the_store_is_named(info: dict[str, Any], store: str) -> None:
    assert DOCKER.store(info) == store


def test_the_supervisor_identifies_a_digest_and_a_content() -> None:
    content = 'linux/arm64 ["sha256:base"] ["PATH=/usr/bin"]'
    assert identity.image_identity(PULLED, content) == DIGEST
    assert identity.image_identity(PULLED, "") == ""
    derived = identity.image_identity(DERIVED, content)
    assert derived.startswith("sha256:")
    assert derived == identity.image_identity(DERIVED, content)
    assert derived != identity.image_identity(DERIVED, content.replace("base", "other"))
