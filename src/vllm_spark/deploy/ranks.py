"""The ranks of a deployment, each with its own fabric and all with one fingerprint. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Facts
from vllm_spark.deploy import budgets, launch
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory import cabling, fabric
from vllm_spark.inventory.fabric import FabricChoice
from vllm_spark.inventory.rank_group import Member, RankGroup
from vllm_spark.inventory.spec import Spec

IMAGES_DIFFER = register("images-differ", runbook="pair-differs")


def join(specs: Mapping[str, Spec], facts: Mapping[str, Facts]) -> dict[str, Spec]:
    """Return the spec of every rank by host, completed from the facts of all hosts. Raises RefusedError with every
    reason why they cannot be one service."""
    specs = budgets.shared(specs, facts)
    specs = {host: replace(spec, gpu_by_cdi=_has_cdi(facts[host])) for host, spec in specs.items()}
    if len(specs) == 1:
        return {host: replace(spec, launch=_same_server(specs, facts)) for host, spec in specs.items()}
    choices = fabric.choose({host: facts[host]["fabric"] for host in specs})
    refused = [*_images(specs, facts), *_environments(specs, choices)]
    if refused:
        raise RefusedError(refused)
    in_order = sorted(specs.values(), key=lambda spec: spec.rank)
    members = tuple(Member(choices[spec.host].host, choices[spec.host].address) for spec in in_order)
    in_turn = any(spec.beside for spec in in_order)
    groups = {host: _group(spec, choices[host], members, in_turn=in_turn) for host, spec in specs.items()}
    ranked = {host: replace(spec, group=groups[host]) for host, spec in specs.items()}
    # One fingerprint for all: a change of any rank is a change of the service.
    hashes = [launch.lines_hash(ranked[spec.host]) for spec in in_order]
    of_all = _same_server(ranked, facts) or hashlib.sha256("".join(hashes).encode()).hexdigest()
    return {
        host: replace(spec, group=replace(spec.group, launch=of_all)) for host, spec in ranked.items() if spec.group
    }


def _same_server(specs: Mapping[str, Spec], facts: Mapping[str, Facts]) -> str:
    """Return the fingerprint of the launch that is on all hosts, if these specs differ from it in nothing but what a
    start reads; otherwise an empty one. So a longer deadline restarts no server."""
    for host, spec in specs.items():
        found = HostContext(host, spec, facts[host]).launch
        if not found or found["deployed"] != launch.standing(spec):
            return ""
    known = {HostContext(host, spec, facts[host]).record.get("launch", "") for host, spec in specs.items()}
    return known.pop() if len(known) == 1 else ""


def notes(specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str) -> tuple[str, ...]:
    """Return the lines about the fabric and the image store of a host that refuse nothing."""
    if len(specs) == 1:
        return ()
    choice = fabric.choose({name: facts[name]["fabric"] for name in specs})[host]
    used = f"fabric: {choice.netdev} {choice.address}, {'+'.join(choice.hcas)}, MTU {choice.mtu}"
    docker = facts[host]["docker"]
    store = [f"Docker {docker['version']} keeps images in {docker['store']}"] if docker.get("store") else []
    return (used, *choice.notes, *store)


def images_differ(what: str, images: Mapping[str, str | None], fix: str) -> Refusal:
    """Return the refusal of hosts whose ranks would not run one image. `images`: host -> identity of its image."""
    observed = ", ".join(f"{host} has {identity or 'none'}" for host, identity in images.items())
    return IMAGES_DIFFER(
        what=f"{what}: {observed}", expected="one image, because the ranks exchange pickled Python objects", fix=fix
    )


def _has_cdi(facts: Facts) -> bool:
    """Return True if Docker gives the GPU to a container by CDI. Each rank has its own way, so Sparks may differ."""
    cdi = facts.get("docker", {}).get("cdi")
    return bool(cdi and cdi.get("file"))


def _group(spec: Spec, own: FabricChoice, members: tuple[Member, ...], *, in_turn: bool) -> RankGroup:
    executor = spec.recipe["topology"]["executor"]
    row = cabling.of_recipe(spec.recipe)
    env = {**fabric.environment(own, executor), **(row.variables if row else {})}
    return RankGroup(spec.rank, executor, own.netdev, members, env, port_set=spec.port_set, in_turn=in_turn)


def _environments(specs: Mapping[str, Spec], choices: Mapping[str, FabricChoice]) -> Iterator[Refusal]:
    """Yield the refusals of env variables. They are computed for the head alone, and name both hosts."""
    spec = next(spec for spec in specs.values() if spec.rank == 0)
    other = next(choice for host, choice in choices.items() if host != spec.host)
    topology, engine = spec.recipe["topology"], spec.recipe["engine"]
    yield from fabric.env_refusals(
        choices[spec.host], topology["executor"], engine["version"], other, spec.recipe.get("env", {})
    )


def _images(specs: Mapping[str, Spec], facts: Mapping[str, Facts]) -> Iterator[Refusal]:
    """Yield a refusal if the hosts have different images under one name. One digest can name two images: an index has
    one per platform, and a local build has no digest. Docker's own ids are not compared: they depend on the image
    store. A worker receives a derived image from the head (images.steps)."""
    images = {host: facts[host]["images"].get(spec.image) for host, spec in specs.items()}
    derived = any(spec.derived for spec in specs.values())
    if not derived and len({identity for identity in images.values() if identity}) > 1:
        removals = " and ".join(f"ssh -t {host} sudo docker image rm" for host in images)
        both = "both" if len(images) == 2 else "all"  # noqa: PLR2004  a pair
        what = f"{next(iter(specs.values())).image} is not the same image on {both}"
        yield images_differ(what, images, f"{removals} that image, then deploy again.")
