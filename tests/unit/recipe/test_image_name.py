"""The one name of an image on every Spark."""

from __future__ import annotations

import pytest

from vllm_spark.recipe import image_name

DIGEST = f"sha256:{'1' * 64}"

# repository of a recipe -> (registry, path, path in the local registry)
REPOSITORIES = {
    "vllm/vllm-openai": ("docker.io", "vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
    "docker.io/vllm/vllm-openai": ("docker.io", "vllm/vllm-openai", "docker.io/vllm/vllm-openai"),
    "registry": ("docker.io", "library/registry", "docker.io/library/registry"),
    "nvcr.io/nvidia/vllm": ("nvcr.io", "nvidia/vllm", "nvcr.io/nvidia/vllm"),
    "registry:5000/vllm-spark/engine": ("registry:5000", "vllm-spark/engine", "registry_5000/vllm-spark/engine"),
    "localhost/engine": ("localhost", "engine", "localhost/engine"),
    "192.168.1.5:5000/engine": ("192.168.1.5:5000", "engine", "192.168.1.5_5000/engine"),
}


@pytest.mark.parametrize("repository", REPOSITORIES)
def test_a_repository_has_one_name_in_the_local_registry(repository: str) -> None:
    host, path, local = REPOSITORIES[repository]
    assert image_name.split(repository) == (host, path)
    name = image_name.local_name(repository, DIGEST)
    assert name == f"127.0.0.1:25093/{local}@{DIGEST}"
    assert image_name.path_of(name) == local
    assert image_name.is_local(name)
    assert not image_name.is_local(f"{repository}@{DIGEST}")


def test_a_derived_image_has_its_inputs_as_tag() -> None:
    name = image_name.derived_name("demo", "0123456789ab")
    assert name == "127.0.0.1:25093/derived/demo:0123456789ab"
    assert image_name.path_of(name) == "derived/demo"
