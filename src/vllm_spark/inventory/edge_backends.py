"""What the edge of a Spark routes to: its own deployments, and those of the other Sparks of its site. From the
inventory and the recipes alone: no Spark is asked about another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from vllm_spark.core import ports
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.inventory import edge, placement
from vllm_spark.inventory.deployment import Deployment
from vllm_spark.inventory.edge import EdgeBackend, EdgeSettings
from vllm_spark.recipe import flag_names, loader, lockfile, roles
from vllm_spark.recipe.lockfile import Lock

SAME_NAME = register("same-name", runbook="inventory-refused")
NAME_CLASH = register("site-name-clash", runbook="edge-site")
NOT_A_MEMBER = register("site-member", runbook="edge-site")
TWO_AUTHORITIES = register("site-two-authorities", runbook="edge-site")
PORT_CLASH = register("site-port", runbook="edge-site")


@dataclass(frozen=True, slots=True)
class OtherEdge:
    """What the inventory says about the edge of another Spark: its `vllm_edge`, not yet checked, and the folder of the
    authority that signs its certificate."""

    settings: object
    authority: str


@dataclass(frozen=True, slots=True)
class Membership:
    """A host of a site: its settings, and what the inventory says about the edge of every Spark, by name."""

    host: str
    settings: EdgeSettings
    edges: Mapping[str, OtherEdge]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another Spark of the site: the address and the port of its edge for other edges, and its deployments."""

    host: str
    address: str
    port: int
    backends: tuple[EdgeBackend, ...]

    @classmethod
    def from_json(cls, document: Document) -> Neighbour:
        return cls(**{**document, "backends": tuple(EdgeBackend.from_json(one) for one in document["backends"])})


@dataclass(frozen=True, slots=True)
class _Offer:
    """A deployment that the site serves. `weights` say which model it is, and how the engine holds it."""

    deployment: Deployment
    backend: EdgeBackend
    weights: str


def of_host(
    deployments: Sequence[Deployment], host: str, folders: Sequence[Path]
) -> tuple[tuple[EdgeBackend, ...], tuple[str, ...]]:
    """Return what the edge of a host routes to on its host, and a line per inactive deployment that cannot be used.
    Raises RefusedError if the recipe of the active one is refused."""
    backends, unusable = [], []
    for each in (each for each in deployments if each.hosts[0] == host):
        try:
            backends.append(_backend(each, _recipe(each, folders)))
        except RefusedError as error:
            if each.active:
                raise
            unusable.append(f"inactive deployment {each.name}: {error}")
    return tuple(backends), tuple(unusable)


def same_name_refusals(
    deployments: Sequence[Deployment], backends: Sequence[EdgeBackend], host: str
) -> Iterator[Refusal]:
    """Yield a refusal per two active deployments behind the edge of a host that clients ask for by one name."""
    active = {each.name for each in deployments if each.active}
    for one, other in combinations((backend for backend in backends if backend.deployment in active), 2):
        if names := sorted(set(one.models) & set(other.models)):
            yield SAME_NAME(
                what=f"{one.deployment} and {other.deployment} are active on {host}, and both serve "
                f"{' and '.join(names)}",
                expected="a name of its own for each model of an edge, because the edge routes by it",
                fix=f"set overrides.model.served_name (and aliases) of {other.deployment}, or `active: false` on one "
                "of them.",
            )


def neighbours(
    deployments: Sequence[Deployment], member: Membership, folders: Sequence[Path], lock: Lock
) -> tuple[Neighbour, ...]:
    """Return the other Sparks of a member's site that have deployments. Raises RefusedError if the site cannot have
    one address."""
    settings = member.settings
    offers = list(_offers([each for each in deployments if each.hosts[0] in settings.site], folders, lock))
    refusals = [
        *_member_refusals(member),
        *_listener_refusals(offers, settings),
        *_name_refusals(offers),
    ]
    if refusals:
        raise RefusedError(refusals)
    found = {
        other: tuple(offer.backend for offer in offers if offer.deployment.hosts[0] == other)
        for other in settings.site
        if other != member.host
    }
    return tuple(
        Neighbour(other, settings.site[other], settings.site_port, backends)
        for other, backends in sorted(found.items())
        if backends
    )


def left_out(deployments: Sequence[Deployment], settings: EdgeSettings) -> tuple[str, ...]:
    """Return a line per Spark whose deployments the site does not serve."""
    heads = sorted({each.hosts[0] for each in deployments} - set(settings.site))
    return tuple(
        f"the site's address does not serve the models of {other}: vllm_edge.site does not name it. "
        f"Fix: add {other} with its address, and deploy."
        for other in heads
    )


def _backend(headed: Deployment, recipe: Document) -> EdgeBackend:
    model = _model(headed, recipe)
    args = loader.with_flag_names(headed.overrides, recipe["engine"]["version"]).get("args", {})
    return EdgeBackend(
        deployment=headed.name,
        models=(model["served_name"], *model.get("aliases", ())),
        bind=headed.bind,
        port=headed.port,
        sequences=flag_names.positive_number({**recipe["args"], **args}, "max-num-seqs"),
        ranks=len(headed.hosts),
        engine=recipe["engine"]["version"],
        role=roles.of(recipe),
    )


def _model(headed: Deployment, recipe: Document) -> Document:
    return {**recipe["model"], **headed.overrides.get("model", {})}


def _recipe(headed: Deployment, folders: Sequence[Path]) -> Document:
    """Return the recipe of a deployment. Raises RefusedError, of an inactive one also if its overrides do not fit it:
    those of the active one are checked with its spec."""
    recipe = loader.load(headed.recipe, folders)
    if not headed.active:
        placement.overridden(headed, recipe)
    return recipe.document


def _offers(headed: Iterable[Deployment], folders: Sequence[Path], lock: Lock) -> Iterator[_Offer]:
    for each in headed:
        try:
            recipe = _recipe(each, folders)
        except RefusedError:
            if each.active:
                raise
            continue  # its own Spark reports it
        pinned = lockfile.pinned({**recipe, "model": _model(each, recipe)}, lock)["model"]
        yield _Offer(each, _backend(each, recipe), _weights(pinned))


def _weights(model: Document) -> str:
    """Return the model in the hub with its commit, and the layout: one commit in BF16 and in FP8 gives two models."""
    layout = ", ".join(f"{part} {width}" for part, width in sorted(model.get("layout", {}).items()))
    commit = f"{model['repository']}@{model.get('revision', 'an unlocked commit')}"
    return f"{commit} as {layout}" if layout else commit


def _member_refusals(member: Membership) -> Iterator[Refusal]:
    """Yield a refusal per Spark of the site that is not in the inventory, has no such edge, or another authority."""
    host, settings, edges = member.host, member.settings, member.edges
    for other in settings.site:
        if other not in edges:
            yield NOT_A_MEMBER(
                what=f"vllm_edge.site names {other}",
                expected=f"Sparks of the inventory: {', '.join(sorted(edges))}",
                fix=f"correct vllm_edge.site, or add {other} to the group sparks.",
            )
            continue
        theirs = edge.parse(edges[other].settings)
        if theirs.open:
            yield NOT_A_MEMBER(
                what=f"vllm_edge.site names {other}, which is open: its engine has neither keys nor TLS",
                expected="Sparks behind an edge",
                fix=f"set vllm_edge: {{open: false}} for {other} as well, or remove {other} from vllm_edge.site.",
            )
        elif _shared(theirs) != _shared(settings):
            yield NOT_A_MEMBER(
                what=f"vllm_edge.site, site_port or switch_by_request of {other} is not that of {host}",
                expected="one site, which all of its Sparks know",
                fix="set vllm_edge once for the group sparks, not by host.",
            )
        own, foreign = edges.get(host, edges[other]).authority, edges[other].authority
        if own != foreign:
            yield TWO_AUTHORITIES(
                what=f"vllm_edge_authority is {own or 'not set'} for {host} and {foreign or 'not set'} for {other}",
                expected="one authority, by whose certificates the edges of a site know each other",
                fix=f"remove vllm_edge_authority of {other}, or remove {other} from vllm_edge.site.",
            )


def _shared(settings: EdgeSettings) -> tuple[object, ...]:
    """Return the settings that every Spark of a site must have alike."""
    return settings.site, settings.site_port, settings.switch_by_request


def _listener_refusals(offers: Sequence[_Offer], settings: EdgeSettings) -> Iterator[Refusal]:
    taken = {offer.deployment.port: f"deployment {offer.deployment.name}" for offer in offers}
    taken |= {settings.metrics_port: "vllm_edge.metrics_port"} if settings.metrics_from else {}
    if (port := settings.site_port) in taken or port in ports.PORTS:
        yield PORT_CLASH(
            what=f"vllm_edge.site_port is {port}, as that of {taken.get(port, 'the ranks of a pair')}",
            expected="a port of its own, on which the edges of a site ask each other",
            fix="set vllm_edge.site_port to another port.",
        )
    for placed in (offer.deployment for offer in offers):
        if placed.bind.startswith("127."):
            yield NOT_A_MEMBER(
                what=f"deployment {placed.name} of {placed.hosts[0]} has bind {placed.bind}",
                expected="an address that the other Sparks of vllm_edge.site reach",
                fix=f"remove bind of {placed.name}, or remove {placed.hosts[0]} from vllm_edge.site.",
            )


def _name_refusals(offers: Sequence[_Offer]) -> Iterator[Refusal]:
    """Yield a refusal per two deployments that have one name for two models. Those of one Spark that never serve at the
    same time may."""
    for one, other in combinations(offers, 2):
        names = sorted(set(one.backend.models) & set(other.backend.models))
        apart = not set(one.deployment.hosts) & set(other.deployment.hosts)
        at_once = apart or (one.deployment.active and other.deployment.active)
        if names and one.weights != other.weights and at_once:
            yield NAME_CLASH(
                what=f"{' and '.join(names)} is {one.weights} in deployment {one.deployment.name} and {other.weights} "
                f"in {other.deployment.name}",
                expected="one model per name, because the site's address balances a name over its deployments",
                fix=f"set overrides.model.served_name (and aliases) of {other.deployment.name}, or remove "
                f"{other.deployment.hosts[0]} from vllm_edge.site.",
            )
