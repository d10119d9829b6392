"""What no launch of a box names any more: images, build folders, mounted files, compile caches. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.lifecycle.installed import (
    KEPT,
    InstalledState,
    Item,
    image_items,
    known_images,
    launches,
    waiting_images,
    wanted_images,
)

PRUNE_WITHOUT_DOCKER = register("prune-without-docker", runbook="remove-refused")
PRUNE_UNREADABLE = register("prune-unreadable", runbook="remove-refused")

REGISTRY = "vllm-spark-registry"


def refusals(boxes: Mapping[str, InstalledState]) -> Iterator[Refusal]:
    """Why nothing is taken away. A record that cannot be read may name what would go."""
    for host, held in boxes.items():
        if held["docker"]["error"]:
            yield PRUNE_WITHOUT_DOCKER(
                what=f"Docker does not answer on {host}: {held['docker']['error']}",
                expected="it to tell which images are there and which of them run",
                fix=f"ssh {host} sudo systemctl start docker.",
            )
        for name, deployment in held["deployments"].items():
            current = deployment["launches"].get("current")
            if current and not (current["record"].get("digest") and current["runnable"]):
                yield PRUNE_UNREADABLE(
                    what=f"{deployment['folder']} of {host} does not say what {name} runs",
                    expected="a launch and its deployed.json, as deploy places them",
                    fix=f"ansible-playbook deploy.yml -l {host}, or remove.yml -e deployment={name}.",
                )


def plan(held: InstalledState) -> tuple[list[Item], list[str]]:
    """(what goes, in this order; what stays although it looks as if it could go, and why). What the current and the
    previous launch of any deployment here name stays, and so does what was pulled and has never run, and whatever a
    container is made of. Models stay."""
    kept = list(launches(held, KEPT))
    wanted = wanted_images(held, kept) | waiting_images(held)
    images, left = image_items(held, known_images(held), wanted, set())
    return [*images, *_builds(held), *_mounts(held), *_caches(held), *_volumes(held)], left


def _builds(held: InstalledState) -> Iterator[Item]:
    """The folder vllm-spark/RECIPE:HASH was built from is RECIPE-HASH (derive.Derived.folder)."""
    named = [name.rpartition("/")[2].replace(":", "-") for name in wanted_images(held, launches(held, KEPT))]
    for build in held["builds"]:
        if build["path"].rpartition("/")[2] not in named:
            yield Item("path", build["path"], "no launch runs the image built from it", build["bytes"])


def _mounts(held: InstalledState) -> Iterator[Item]:
    for name, deployment in held["deployments"].items():
        wanted = {path for launch in launches(held, KEPT, [name]) for path in launch["needs"]["files"]}
        for mount in deployment["mounts"]:
            if mount["path"] not in wanted:
                yield Item("path", mount["path"], "no launch mounts it", mount["bytes"])


def _caches(held: InstalledState) -> Iterator[Item]:
    """Of the toolkit's own folder alone: one that an inventory names may hold what is no cache of ours."""
    for cache in held["caches"]:
        name = cache["path"].rpartition("/")[2]
        if name not in held["deployments"]:
            yield Item("path", cache["path"], f"there is no deployment {name} here", cache["bytes"])


def _volumes(held: InstalledState) -> Iterator[Item]:
    """What the head's registry has kept to push less the next time. One that runs is in use."""
    running = {container["name"] for container in held["docker"]["containers"]}
    for volume in held["docker"]["volumes"]:
        if volume["name"] == REGISTRY and REGISTRY not in running:
            yield Item("volume", volume["name"], "copies of images for the other Spark", volume["bytes"])
