"""The source of each image on each Spark: a registry once, then missing layers from another Spark. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from docker import auth as docker_auth  # type: ignore[import-untyped]

from vllm_spark.core.host_layout import IMAGE_CACHE_DIR
from vllm_spark.core.platforms import MACHINES
from vllm_spark.core.ports import BUNDLE_IMAGES_PORT, IMAGES_PORT, LOOPBACK, MIRROR_PORT
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.deploy import images, ranks
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.pull.image_pull import ImageRequest, ImageServerRequest, UpstreamRequest
from vllm_spark.transfer.site import PullSite, PullSteps

BUNDLE_DERIVED = register("bundle-derived", runbook="bundle-lacks")
IMAGES_DIFFER = register("images-differ", runbook="pair-differs")


@dataclass(frozen=True, slots=True)
class Image:
    """An image by digest in its registry. `name` is the argument of `docker run`."""

    name: str
    host: str
    repository: str
    digest: str
    platform: str

    def pull_request(self, upstream: UpstreamRequest | None, *, keep: bool) -> ImageRequest:
        """Return the request of a job that pulls the image."""
        return {
            "image": self.name,
            "host": self.host,
            "repository": self.repository,
            "digest": self.digest,
            "platform": self.platform,
            "port": MIRROR_PORT,
            "folder": IMAGE_CACHE_DIR,
            "keep": keep,
            "upstream": upstream,
        }

    def server_request(self, upstream: UpstreamRequest | None, address: str) -> ImageServerRequest:
        """Return the request of a job that serves the image on `address`."""
        return {
            "image": self.name,
            "host": self.host,
            "repository": self.repository,
            "digest": self.digest,
            "platform": self.platform,
            "port": IMAGES_PORT,
            "folder": IMAGE_CACHE_DIR,
            "keep": True,
            "upstream": upstream,
            "address": address,
        }


def image_of(spec: Spec, machine: str) -> Image:
    """Return the base image of a spec, for the machine of a host (`uname -m`)."""
    host, repository = docker_auth.resolve_repository_name(spec.recipe["image"]["repository"])
    # Docker's own names have one word; its registry keeps them in a folder.
    repository = f"library/{repository}" if host == "docker.io" and "/" not in repository else repository
    platform = next((name for name in spec.platforms if MACHINES.get(name) == machine), spec.platforms[0])
    return Image(spec.base, host, repository, spec.digest, platform)


def plan(site: PullSite, steps: Mapping[str, PullSteps]) -> dict[str, list[Refusal]]:
    """Add the images to the steps of every host. Return the refusals by host."""
    refusals: dict[str, list[Refusal]] = {host: [] for host in site.specs}
    for host, specs in site.specs.items():
        for spec in specs:
            steps[host].platform = image_of(spec, site.facts[host]["machine"]).platform
            try:
                refusals[host] += _plan_derived(site, steps[host], spec) if spec.derived else []
            except RefusedError as error:
                # A refusal of the pair is reported once, at its head.
                refusals[host] += error.refusals if spec.rank == 0 else []
            if not spec.derived and not site.has_image(host, spec.base):
                _plan_base(site, steps, host, spec)
    return refusals


def _plan_derived(site: PullSite, own: PullSteps, spec: Spec) -> list[Refusal]:
    """Build on the head and copy to the worker, as a deploy does."""
    hosts = spec.deployment.hosts
    if site.bundled and not site.has_image(spec.host, spec.image):
        return [_not_in_bundle(spec)]
    specs = {host: next(s for s in site.specs[host] if s.deployment.name == spec.deployment.name) for host in hosts}
    joined = ranks.join(specs, {host: site.facts[host] for host in hosts})[spec.host]
    peers = [site.facts[host] for host in hosts if host != spec.host]
    todo = images.steps(joined, site.facts[spec.host], peers, site.toolkit)
    if todo.pull or todo.build or todo.transfer:
        own.derived_image = {"image": spec.image, "base": spec.base, "platform": own.platform, **asdict(todo)}
        own.lines += todo.lines(joined)
    return []


def _plan_base(site: PullSite, steps: Mapping[str, PullSteps], host: str, spec: Spec) -> None:
    image, own = image_of(spec, site.facts[host]["machine"]), steps[host]
    planned = [*(entry["image"] for entry in [*own.cached_pulls, *own.peer_pulls]), *own.registry_pulls]
    if spec.base in planned:
        return
    outside: UpstreamRequest | None = None if site.bundled else {"host": image.host}
    others = [h for h, specs in site.specs.items() if h != host and any(_runs_base(s, spec) for s in specs)]
    joined = [other for other in others if site.address(other, host)]
    order = list(site.specs)
    # A host that has the image serves it, else the first in the order of the inventory.
    sender = next((h for h in joined if site.has_image(h, spec.base) or order.index(h) < order.index(host)), "")
    if sender:
        address = site.address(sender, host)
        steps[sender].image_server = image.server_request(outside, address)
        url = f"http://{address}:{IMAGES_PORT}"
        own.peer_pulls.append(image.pull_request({"url": url, "host": sender}, keep=False))
        own.lines.append(f"image {spec.base} comes from {sender}, over the fabric: the layers that are not here")
        return
    own.lines.append(f"image {spec.base} comes from {'the bundle' if site.bundled else 'its registry'}")
    if site.bundled:
        # All layers: only this Spark has a connection to the bundle, and another Spark may need more layers.
        bundle: UpstreamRequest = {"url": f"http://{LOOPBACK}:{BUNDLE_IMAGES_PORT}", "host": "the bundle"}
        own.cached_pulls.append({**image.pull_request(bundle, keep=True), "all_layers": True})
    elif joined:
        own.cached_pulls.append(image.pull_request(outside, keep=True))
    else:
        own.registry_pulls.append(spec.base)


def _runs_base(other: Spec, spec: Spec) -> bool:
    """Return True if `other` runs the base image of `spec` without a derivation."""
    return other.base == spec.base and not other.derived


def _not_in_bundle(spec: Spec) -> Refusal:
    return BUNDLE_DERIVED(
        what=f"{spec.image} of {spec.deployment.name} is not on {spec.host}, and a bundle contains no derived images",
        expected="the image on the Spark, carried beside the bundle or built there",
        fix=f"where it was built: docker save {spec.image} -o derived.tar; on {spec.host}: docker load -i derived.tar.",
    )


def differing(site: PullSite, head: str) -> Iterator[Refusal]:
    """Yield a refusal for each deployment of this head whose hosts do not have the same image after the pull."""
    for spec in (spec for spec in site.specs[head] if spec.rank == 0):
        images_of = {host: site.facts[host]["images"].get(spec.image) for host in spec.deployment.hosts}
        if None in images_of.values() or len(set(images_of.values())) > 1:
            observed = ", ".join(f"{host} has {identity or 'none'}" for host, identity in images_of.items())
            yield IMAGES_DIFFER(
                what=f"{spec.image} of {spec.deployment.name} is not the same image everywhere: {observed}",
                expected="one image, because the ranks exchange pickled Python objects",
                fix="docker image rm of it on each, then ansible-playbook pull.yml again.",
            )
