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
    hosts = {host: HostContext(host, spec, facts[host]) for host, spec in specs.items()}
    return {host: one.spec for host, one in joined(hosts).items()}


def joined(hosts: Mapping[str, HostContext]) -> dict[str, HostContext]:
    """Return the hosts of a deployment with their ranks as `join` completes them, which says what it raises."""
    # Each rank has its own way to the GPU, so Sparks may differ.
    hosts = {host: one.with_rank(gpu_by_cdi=bool(one.cdi.get("file"))) for host, one in budgets.shared(hosts).items()}
    if len(hosts) == 1:
        return {host: one.with_rank(launch=_same_server(hosts)) for host, one in hosts.items()}
    choices = _fabric(hosts)
    in_order = sorted((one.spec for one in hosts.values()), key=lambda spec: spec.rank)
    if refused := [*_images(hosts), *_environments(in_order[0], choices)]:
        raise RefusedError(refused)
    members = tuple(Member(choices[spec.host].host, choices[spec.host].address) for spec in in_order)
    in_turn = any(spec.beside for spec in in_order)
    groups = {host: _group(one.spec, choices[host], members, in_turn=in_turn) for host, one in hosts.items()}
    ranked = {host: one.with_rank(group=groups[host]) for host, one in hosts.items()}
    # One fingerprint for all: a change of any rank is a change of the service.
    hashes = [launch.lines_hash(ranked[spec.host].spec) for spec in in_order]
    of_all = _same_server(ranked) or hashlib.sha256("".join(hashes).encode()).hexdigest()
    return {host: one.with_rank(group=replace(groups[host], launch=of_all)) for host, one in ranked.items()}


def _fabric(hosts: Mapping[str, HostContext]) -> Mapping[str, FabricChoice]:
    return fabric.choose({host: one.facts["fabric"] for host, one in hosts.items()})


def _same_server(hosts: Mapping[str, HostContext]) -> str:
    """Return the fingerprint of the launch that is on all hosts, if these specs differ from it in nothing but what a
    start reads; otherwise an empty one. So a longer deadline restarts no server."""
    if not all(one.launch and one.launch["deployed"] == launch.standing(one.spec) for one in hosts.values()):
        return ""
    known = {one.record.get("launch", "") for one in hosts.values()}
    return known.pop() if len(known) == 1 else ""


def notes(hosts: Mapping[str, HostContext], host: str) -> tuple[str, ...]:
    """Return the lines about the fabric and the image store of a host that refuse nothing."""
    if len(hosts) == 1:
        return ()
    choice, docker = _fabric(hosts)[host], hosts[host].docker
    used = f"fabric: {choice.netdev} {choice.address}, {'+'.join(choice.hcas)}, MTU {choice.mtu}"
    store = [f"Docker {docker['version']} keeps images in {docker['store']}"] if docker.get("store") else []
    return (used, *choice.notes, *store)


def images_differ(what: str, images: Mapping[str, str | None], fix: str) -> Refusal:
    """Return the refusal of hosts whose ranks would not run one image. `images`: host -> identity of its image."""
    observed = ", ".join(f"{host} has {identity or 'none'}" for host, identity in images.items())
    return IMAGES_DIFFER(
        what=f"{what}: {observed}", expected="one image, because the ranks exchange pickled Python objects", fix=fix
    )


def _group(spec: Spec, own: FabricChoice, members: tuple[Member, ...], *, in_turn: bool) -> RankGroup:
    executor = spec.recipe["topology"]["executor"]
    row = cabling.of_recipe(spec.recipe)
    env = {**fabric.environment(own, executor), **(row.variables if row else {})}
    return RankGroup(spec.rank, executor, own.netdev, members, env, port_set=spec.port_set, in_turn=in_turn)


def _environments(head: Spec, choices: Mapping[str, FabricChoice]) -> Iterator[Refusal]:
    """Yield the refusals of env variables. They are computed for the head alone, and name both hosts."""
    other = next(choice for host, choice in choices.items() if host != head.host)
    executor, version = head.recipe["topology"]["executor"], head.recipe["engine"]["version"]
    yield from fabric.env_refusals(choices[head.host], executor, version, other, head.recipe.get("env", {}))


def _images(hosts: Mapping[str, HostContext]) -> Iterator[Refusal]:
    """Yield a refusal if the hosts have different images under one name. One digest can name two images: an index has
    one per platform, and a local build has no digest. Docker's own ids are not compared: they depend on the image
    store. A worker receives a derived image from the head (images.steps)."""
    images, (first, *others) = {host: one.image for host, one in hosts.items()}, hosts.values()
    derived = any(one.spec.derived for one in (first, *others))
    if not derived and len({identity for identity in images.values() if identity}) > 1:
        removals = " and ".join(f"ssh -t {host} sudo docker image rm" for host in images)
        what = f"{first.spec.image} is not the same image on {'all' if others[1:] else 'both'}"
        yield images_differ(what, images, f"{removals} that image, then deploy again.")
