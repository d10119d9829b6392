"""The source of each image on each Spark: a registry once, then missing layers from another Spark. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_spark.core.ports import BUNDLE_PORT, LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.deploy import images, ranks
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.pull.image_pull import UpstreamRequest
from vllm_spark.recipe import image_name
from vllm_spark.transfer.site import PullSite, PullSteps

BUNDLE_DERIVED = register("bundle-derived", runbook="bundle-lacks")


def plan(site: PullSite, steps: Mapping[str, PullSteps]) -> dict[str, list[Refusal]]:
    """Add the images to the steps of every host. Return the refusals by host."""
    refusals: dict[str, list[Refusal]] = {host: [] for host in site.specs}
    for host, specs in site.specs.items():
        for spec in specs:
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
    if site.bundled and not site.has_image(spec.host, spec.image):
        return [_not_in_bundle(spec)]
    name, hosts = spec.deployment.name, spec.deployment.hosts
    specs = {host: next(s for s in site.specs[host] if s.deployment.name == name) for host in hosts}
    joined = ranks.joined({host: HostContext(host, one, site.facts[host]) for host, one in specs.items()})
    here = joined.pop(spec.host)
    todo = images.steps(here, list(joined.values()), site.toolkit, online=not site.bundled)
    planned = own.images
    own.lines += todo.lines(here.spec)
    planned.pulls += [pull for pull in todo.pulls if pull["image"] not in own.pulled_images()]
    planned.builds += todo.builds
    planned.pushes += todo.pushes
    planned.takes += todo.takes
    for repository, upstream in todo.server.get("repositories", {}).items():
        planned.serve(todo.server["address"], repository, upstream)
    return []


def _plan_base(site: PullSite, steps: Mapping[str, PullSteps], host: str, spec: Spec) -> None:
    own, machine, registry = steps[host], site.facts[host]["machine"], images.registry_of(spec)
    if spec.base in own.pulled_images():
        return
    # Those that run this base without a derivation.
    users = {h for h, specs in site.specs.items() for s in specs if s.base == spec.base and not s.derived} - {host}
    joined = [other for other in site.specs if other in users and site.address(other, host)]
    order = list(site.specs)
    # A host that has the image serves it, else the first in the order of the inventory.
    sender = next((h for h in joined if site.has_image(h, spec.base) or order.index(h) < order.index(host)), "")
    if sender:
        address, repository = site.address(sender, host), image_name.path_of(spec.base)
        steps[sender].images.serve(address, repository, None if site.bundled else registry)
        server = images.server_of(sender, address, spec.base)
        own.images.takes.append(images.pull_request(spec, machine, server, keep=False))
        own.lines.append(f"image {spec.source} comes from {sender}, over the fabric: the layers that are not here")
    elif site.bundled:
        # All layers: only this Spark has a connection to the bundle, and another Spark may need more layers.
        url = f"http://{LOOPBACK}:{BUNDLE_PORT}"
        bundle = UpstreamRequest(host="the bundle", repository=image_name.path_of(spec.base), url=url)
        own.bundle_pulls.append({**images.pull_request(spec, machine, bundle, keep=True), "all_layers": True})
        own.lines.append(f"image {spec.source} comes from the bundle")
    else:
        own.images.pulls.append(images.pull_request(spec, machine, registry, keep=bool(joined)))
        own.lines.append(f"image {spec.source} comes from its registry")


def _not_in_bundle(spec: Spec) -> Refusal:
    return BUNDLE_DERIVED(
        what=f"{spec.image} of {spec.deployment.name} is not on {spec.host}, and a bundle contains no derived images",
        expected="the image on the Spark, carried beside the bundle or built there",
        fix=f"where it was built: `sudo docker save {spec.image} -o derived.tar`; on {spec.host}: `sudo docker load -i "
        "derived.tar`.",
    )


def differing(site: PullSite, head: str) -> Iterator[Refusal]:
    """Yield a refusal for each deployment of this head whose hosts do not have the same image after the pull."""
    for spec in (spec for spec in site.specs[head] if spec.rank == 0):
        images_of = {host: site.facts[host]["images"].get(spec.image) for host in spec.deployment.hosts}
        if None in images_of.values() or len(set(images_of.values())) > 1:
            yield ranks.images_differ(
                f"{spec.image} of {spec.deployment.name} is not the same image everywhere",
                images_of,
                f"`sudo docker image rm {spec.image}` on each, then `ansible-playbook pull.yml`.",
            )
