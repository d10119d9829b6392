"""The name under which Docker has an image of a recipe: 127.0.0.1:25093/REGISTRY/REPOSITORY@DIGEST. Pure.

Docker keeps the digest of an image only under the name of a registry that it pulled from. Every pull of the toolkit
goes through its own registry on the loopback device (node/pull/image_pull.py), so every image has this name on every
Spark. An image that the owner pulled under its own name shares all layers: the pull then moves its manifest alone.
"""

from __future__ import annotations

from vllm_spark.core.ports import LOOPBACK, MIRROR_PORT

LOCAL_REGISTRY = f"{LOOPBACK}:{MIRROR_PORT}"
DOCKER_HUB = "docker.io"
# The folder of derived images in the local registry.
DERIVED = "derived"


def split(repository: str) -> tuple[str, str]:
    """Return (registry, path) of a repository as a recipe names it (distribution/reference, familiar names)."""
    first, _, rest = repository.partition("/")
    if rest and (first == "localhost" or {".", ":"} & {*first}):
        host, path = first, rest
    else:
        host, path = DOCKER_HUB, repository
    # Docker's own names have one word; its registry keeps them in a folder.
    return host, f"library/{path}" if host == DOCKER_HUB and "/" not in path else path


def local_repository(repository: str) -> str:
    """Return the path in the local registry. A path has no colon, and a registry's name has no underscore."""
    host, path = split(repository)
    return f"{host.replace(':', '_').lower()}/{path}"


def local_name(repository: str, digest: str) -> str:
    """Return the name by digest that Docker has on every Spark."""
    return f"{LOCAL_REGISTRY}/{local_repository(repository)}@{digest}"


def derived_name(recipe: str, inputs: str) -> str:
    """Return the name of a derived image. `inputs` are digits of the hash of its inputs."""
    return f"{LOCAL_REGISTRY}/{DERIVED}/{recipe}:{inputs}"


def path_of(image: str) -> str:
    """Return the path of a local name in the local registry, without tag and digest."""
    return image.partition("@")[0].removeprefix(f"{LOCAL_REGISTRY}/").partition(":")[0]


def is_local(name: str) -> bool:
    """Return True for a name that only the toolkit gives."""
    return name.startswith(f"{LOCAL_REGISTRY}/")
