"""Which Spark gets an image from its registry, and who takes only missing layers from another. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from docker import auth as docker_auth  # type: ignore[import-untyped]

from vllm_spark.core.host_layout import IMAGE_CACHE_DIR
from vllm_spark.core.platforms import MACHINES
from vllm_spark.core.ports import BUNDLE_IMAGES_PORT, IMAGES_PORT, LOOPBACK, MIRROR_PORT
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.deploy import images, ranks
from vllm_spark.inventory.spec import Spec
from vllm_spark.transfer.site import PullSite, PullSteps

BUNDLE_DERIVED = register("bundle-derived", runbook="bundle-lacks")
IMAGES_DIFFER = register("images-differ", runbook="pair-differs")


@dataclass(frozen=True, slots=True)
class Image:
    """An image by digest, as a registry has it. `name` is what `docker run` is given."""

    name: str
    host: str
    repository: str
    digest: str
    platform: str

    def request(self) -> dict[str, Any]:
        """For src/vllm_spark/node/pull/image_pull.py, but for what is behind the shelf."""
        return {
            "image": self.name,
            "host": self.host,
            "repository": self.repository,
            "digest": self.digest,
            "platform": self.platform,
            "port": MIRROR_PORT,
            "folder": IMAGE_CACHE_DIR,
        }


def image_of(spec: Spec, machine: str) -> Image:
    """The base of a deployment, for a Spark of this machine (`uname -m`)."""
    host, repository = docker_auth.resolve_repository_name(spec.recipe["image"]["repository"])
    # Docker's own names have one word; its registry keeps them in a folder.
    repository = f"library/{repository}" if host == "docker.io" and "/" not in repository else repository
    platform = next((name for name in spec.platforms if MACHINES.get(name) == machine), spec.platforms[0])
    return Image(spec.base, host, repository, spec.digest, platform)


def steps(site: PullSite, found: Mapping[str, PullSteps]) -> dict[str, list[Refusal]]:
    """Complete every Spark's steps with its images; returns by host why one cannot have its."""
    refused: dict[str, list[Refusal]] = {host: [] for host in site.wanted}
    for host, specs in site.wanted.items():
        for spec in specs:
            found[host].platform = image_of(spec, site.facts[host]["machine"]).platform
            try:
                refused[host] += _derived(site, found[host], spec) if spec.derived else []
            except RefusedError as error:
                # What is wrong with a pair as a pair is said once, at its head.
                refused[host] += error.refusals if spec.rank == 0 else []
            if not spec.derived and not site.has(host, spec.base):
                _plain(site, found, host, spec)
    return refused


def _derived(site: PullSite, mine: PullSteps, spec: Spec) -> list[Refusal]:
    """Built on the head, and given to the worker: as a deploy does it."""
    hosts = spec.deployment.hosts
    if site.bundled and not site.has(spec.host, spec.image):
        return [_not_in_bundle(spec)]
    placed = {host: next(s for s in site.wanted[host] if s.deployment.name == spec.deployment.name) for host in hosts}
    joined = ranks.join(placed, {host: site.facts[host] for host in hosts})[spec.host]
    peers = [site.facts[host] for host in hosts if host != spec.host]
    todo = images.steps(joined, site.facts[spec.host], peers, site.toolkit)
    if todo.pull or todo.build or todo.transfer:
        mine.made = {"image": spec.image, "base": spec.base, "platform": mine.platform, **asdict(todo)}
        mine.lines += todo.lines(joined)
    return []


def _plain(site: PullSite, found: Mapping[str, PullSteps], host: str, spec: Spec) -> None:
    image, mine = image_of(spec, site.facts[host]["machine"]), found[host]
    behind = None if site.bundled else {"host": image.host}
    others = [h for h, specs in site.wanted.items() if h != host and any(_runs(s, spec) for s in specs)]
    joined = [other for other in others if site.address(other, host)]
    order = list(site.wanted)
    # The one that has it gives, else the first in the inventory's order.
    giver = next((h for h in joined if site.has(h, spec.base) or order.index(h) < order.index(host)), "")
    request = image.request()
    if spec.base in [*(entry["image"] for entry in [*mine.shelved, *mine.over]), *mine.pulls]:
        return
    if giver:
        address = site.address(giver, host)
        found[giver].shelf = {**request, "address": address, "port": IMAGES_PORT, "keep": True, "behind": behind}
        url = f"http://{address}:{IMAGES_PORT}"
        mine.over.append({**request, "keep": False, "behind": {"url": url, "host": giver}})
        mine.lines.append(f"image {spec.base} comes from {giver}, over the fabric: the layers that are not here")
        return
    mine.lines.append(f"image {spec.base} comes from {'the bundle' if site.bundled else 'its registry'}")
    if site.bundled:
        # All of it, because the way to the bundle is open for the first Spark alone, and another may lack more layers.
        way = {"url": f"http://{LOOPBACK}:{BUNDLE_IMAGES_PORT}", "host": "the bundle"}
        mine.shelved.append({**request, "keep": True, "behind": way, "whole": True})
    elif joined:
        mine.shelved.append({**request, "keep": True, "behind": behind})
    else:
        mine.pulls.append(spec.base)


def _runs(other: Spec, spec: Spec) -> bool:
    """Does this one run that image as it is?"""
    return other.base == spec.base and not other.derived


def _not_in_bundle(spec: Spec) -> Refusal:
    return BUNDLE_DERIVED(
        what=f"{spec.image} of {spec.deployment.name} is not on {spec.host}, and a bundle holds no image that is built",
        expected="it carried beside the bundle, or built here",
        fix=f"where it was built: docker save {spec.image} -o derived.tar; on {spec.host}: docker load -i derived.tar.",
    )


def differing(site: PullSite, head: str) -> Iterator[Refusal]:
    """Deployments of this head whose Sparks do not have one and the same image when everything has been done."""
    for spec in (spec for spec in site.wanted[head] if spec.rank == 0):
        ids = {host: site.facts[host]["images"].get(spec.image) for host in spec.deployment.hosts}
        if None in ids.values() or len(set(ids.values())) > 1:
            seen = ", ".join(f"{host} has {found or 'none'}" for host, found in ids.items())
            yield IMAGES_DIFFER(
                what=f"{spec.image} of {spec.deployment.name} is not the same image everywhere: {seen}",
                expected="one image ID, because the ranks exchange pickled Python objects",
                fix="docker image rm of it on each, then ansible-playbook pull.yml again.",
            )
