"""Items that nothing on a host references: images, build folders, mounted files, compile caches, shared blobs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.lifecycle.installed import (
    KEPT,
    InstalledState,
    Item,
    image_items,
    known_images,
    lacks_docker,
    launches,
    referenced_images,
    waiting_images,
)
from vllm_spark.node.host_layout import CURRENT

PRUNE_WITHOUT_DOCKER = register("prune-without-docker", runbook="remove-refused")
PRUNE_UNREADABLE = register("prune-unreadable", runbook="remove-refused")


def refusals(hosts: Mapping[str, InstalledState]) -> Iterator[Refusal]:
    """Yield the reasons why nothing is removed. An unreadable record may reference what would be removed."""
    for host, state in hosts.items():
        if lacks_docker(state):
            yield PRUNE_WITHOUT_DOCKER(
                what=f"Docker does not answer on {host}: {state['docker']['error']}",
                expected="a running Docker, because it knows which images are used",
                fix=Fix(f"ssh -t {host} sudo systemctl start docker"),
            )
        for name, deployment in state["deployments"].items():
            current = deployment["launches"].get(CURRENT)
            if current and not (current["record"].get("digest") and current["runnable"]):
                yield PRUNE_UNREADABLE(
                    what=f"{deployment['folder']} of {host} does not say what {name} runs",
                    expected="a launch and its deployed.json, as deploy places them",
                    fix=Fix(
                        f"ansible-playbook deploy.yml -l {host}",
                        f"Or `ansible-playbook remove.yml -e deployment={name}`.",
                    ),
                )


def plan(state: InstalledState) -> tuple[list[Item], list[str]]:
    """Return the items to remove, in this order, and a line for each unreferenced item that stays, with its reason.
    References are those of the current and the previous launch of each deployment, of pulled images that have never
    run, and of containers. Models stay, and so does what a model of the hub cache links to, also one of the owner's."""
    kept = list(launches(state, KEPT))
    referenced = referenced_images(state, kept) | waiting_images(state)
    images, left = image_items(state, known_images(state), referenced, set())
    return [*images, *_builds(state), *_mounts(state), *_caches(state), *_shared(state)], left


def _builds(state: InstalledState) -> Iterator[Item]:
    """Yield build folders without a launch. vllm-spark/RECIPE:HASH is built in RECIPE-HASH (recipe.derived_image)."""
    named = [name.rpartition("/")[2].replace(":", "-") for name in referenced_images(state, launches(state, KEPT))]
    for build in state["builds"]:
        if build["path"].rpartition("/")[2] not in named:
            yield Item("path", build["path"], "no launch runs the image built from it", build["bytes"])


def _mounts(state: InstalledState) -> Iterator[Item]:
    for name, deployment in state["deployments"].items():
        referenced = {path for launch in launches(state, KEPT, [name]) for path in launch["needs"]["files"]}
        for mount in deployment["mounts"]:
            if mount["path"] not in referenced:
                yield Item("path", mount["path"], "no launch mounts it", mount["bytes"])


def _caches(state: InstalledState) -> Iterator[Item]:
    """Yield the caches without a deployment. Only the default folder is pruned; a configured one may contain other
    data."""
    for cache in state["caches"]:
        name = cache["path"].rpartition("/")[2]
        if name not in state["deployments"]:
            yield Item("path", cache["path"], f"there is no deployment {name} here", cache["bytes"])


def _shared(state: InstalledState) -> Iterator[Item]:
    """Yield the files of the shared store (node/shared_blobs.py) that nothing in the toolkit's hub cache links to."""
    for blob in state["shared_blobs"]:
        yield Item("shared", blob["path"], "no model of the hub cache links to it", blob["bytes"])
