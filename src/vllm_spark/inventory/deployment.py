"""Deployments: the entries of the inventory's `vllm_deployments`, and those of one Spark."""

from __future__ import annotations

import urllib.parse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from vllm_spark.core import ports
from vllm_spark.core.fault import Fault
from vllm_spark.core.plain_data import DocumentError, plain
from vllm_spark.core.plain_data import Path as Path_
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.node.host_layout import EDGE_DIR
from vllm_spark.node.supervise.rank import MOST_RANKS
from vllm_spark.recipe import rules

BAD_DEPLOYMENTS = register("bad-deployments", runbook="inventory-refused")
SAME_PORT = register("same-port", runbook="inventory-refused")

# The longest name of a deployment (deployments.schema.json).
MAX_NAME = 48

# The name of the edge's folder among those of deployments.
EDGE_NAME = EDGE_DIR.rpartition("/")[2]

SCHEMA = Path(__file__).with_name("deployments.schema.json")


@dataclass(frozen=True, slots=True)
class Deployment:
    """A recipe placed on named Sparks. hosts[0] is the head.

    - `overrides`: block of the recipe -> key -> value, where None removes the key; a drafter of None removes it
    - `through`: a router in front of this server, as the head reaches it: url, key (the name of the variable with its
      API key), model (its name there)
    """

    name: str
    recipe: str
    hosts: tuple[str, ...]
    port: int = 8000
    # A model server in a home network is meant to be reached from that network.
    bind: str = ports.ALL_INTERFACES
    active: bool = True
    overrides: Document = field(default_factory=dict)
    accept_known_issues: tuple[str, ...] = ()
    through: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: Document) -> Deployment:
        """Build from an entry of the inventory, or from a deployment that was converted to JSON."""
        lists = {name: tuple(document[name]) for name in ("hosts", "accept_known_issues") if name in document}
        return cls(**{**document, **lists})

    @property
    def unit(self) -> str:
        return f"vllm@{self.name}.service"

    @property
    def timer(self) -> str:
        """The timer of the liveness check, which runs on the head every 15 seconds."""
        return f"vllm-liveness@{self.name}.timer"

    @property
    def container(self) -> str:
        return f"vllm-{self.name}"

    @property
    def local_address(self) -> str:
        """The address of the API for clients on the same host."""
        return ports.LOOPBACK if self.bind == ports.ALL_INTERFACES else self.bind


def name_for(recipe: str) -> str:
    """Return the name of a deployment for a recipe that no inventory places: dashes in place of its dots, and never the
    edge's."""
    name = recipe.replace(".", "-")
    return f"{name}-model" if name == EDGE_NAME else name


def parse(raw: object) -> list[Deployment]:
    """Check `vllm_deployments` and return it. Raises RefusedError with every fault of it."""
    # Importing jsonschema takes a tenth of a second, and only this phase needs it.
    from vllm_spark.core import schema  # noqa: PLC0415

    try:
        document = plain(raw)
    except DocumentError as error:
        place = _place(raw, error.path)
        _refuse_if([Fault(f"{place}: {error.fault.what}", error.fault.expected)])
    _refuse_if(list(schema.faults(document, SCHEMA, lambda path: _place(document, tuple(path)))))
    deployments = [Deployment.from_json(entry) for entry in document]
    _refuse_if(list(_cross_faults(deployments)))
    return deployments


def _place(raw: object, path: Path_) -> str:
    """Return the place of a fault: `deployment NAME: KEY`. An entry without a name has its number, counted from 1."""
    from vllm_spark.core import schema  # noqa: PLC0415  as in parse

    if not path or not isinstance(path[0], int):
        return "vllm_deployments"
    entry = raw[path[0]] if isinstance(raw, Sequence) else None
    name = entry.get("name") if isinstance(entry, Mapping) else None
    is_name = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable() and path[1:] != ("name",)
    start = f"deployment {name}" if is_name else f"vllm_deployments: entry {path[0] + 1}"
    return start if not path[1:] else f"{start}: {schema.location(path[1:])}"


def refuse_overrides(deployment: Deployment, faults: Iterable[Fault]) -> None:
    """Raise RefusedError if the overrides of a deployment cause faults in its recipe."""
    _refuse_if([Fault(f"deployment {deployment.name}: overrides.{fault.what}", fault.expected) for fault in faults])


def _refuse_if(faults: Sequence[Fault]) -> None:
    if faults:
        raise RefusedError(
            BAD_DEPLOYMENTS(what=fault.what, expected=fault.expected, fix="correct vllm_deployments in the inventory.")
            for fault in faults
        )


def _cross_faults(deployments: Sequence[Deployment]) -> Iterator[Fault]:
    """Yield the faults that a schema cannot express."""
    names: set[str] = set()
    for deployment in deployments:
        place = f"deployment {deployment.name}"
        if deployment.name in names:
            yield Fault(f"vllm_deployments: two are named {deployment.name}", "every name once")
        names.add(deployment.name)
        if deployment.name == EDGE_NAME:
            yield Fault(f"{place}: name: {EDGE_NAME}", f"another name, because {EDGE_DIR} is the edge's")
        if (ranks := len(deployment.hosts)) > MOST_RANKS:
            yield Fault(
                f"{place}: hosts: {ranks} Sparks", f"one to {MOST_RANKS}, because no server is deployed on more"
            )
        if len(deployment.hosts) > 1 and deployment.port in ports.PORTS:
            yield Fault(
                f"{place}: port: {deployment.port}",
                f"one outside {ports.PORTS.start} to {ports.PORTS.stop - 1}, which are reserved between the ranks",
            )
        if (url := deployment.through.get("url")) and not _is_address(url):
            yield Fault(f"{place}: through.url: {url}", "a host and a port of 1 to 65535")
        # Those of an inactive one are read with its recipe, by the verbs that need it.
        for fault in rules.override_faults(deployment.overrides) if deployment.active else ():
            yield Fault(f"{place}: overrides.{fault.what}", fault.expected)


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def of_host(deployments: Sequence[Deployment], host: str) -> list[Deployment]:
    """Return the deployments that name a host, active or not."""
    return [deployment for deployment in deployments if host in deployment.hosts]


def active_of_host(deployments: Sequence[Deployment], host: str, chosen: Collection[str] = ()) -> list[Deployment]:
    """Return the active deployments of a host, those of `chosen` first: the first one is that of this turn."""
    active = [deployment for deployment in of_host(deployments, host) if deployment.active]
    return sorted(active, key=lambda deployment: deployment.name not in chosen)


def turns(deployments: Sequence[Deployment]) -> list[list[str]]:
    """Return the names of the active deployments in turns: no two of one turn share a Spark, and each is in the first
    turn that has room for it, in the order of the inventory. A run deploys one turn after the other."""
    found: list[list[Deployment]] = []
    for placed in (placed for placed in deployments if placed.active):
        free = (turn for turn in found if not any(set(other.hosts) & set(placed.hosts) for other in turn))
        if (turn := next(free, None)) is None:
            found.append(turn := [])
        turn.append(placed)
    return [[placed.name for placed in turn] for turn in found]


def turns_of_host(raw: object, host: str) -> list[list[str]]:
    """Return the turns in which a host has a deployment; the first one for a host without any. An inventory that is
    refused has one turn, whose first task says why."""
    try:
        deployments = parse(raw)
    except RefusedError:
        return [[]]
    named, all_turns = {placed.name for placed in of_host(deployments, host)}, turns(deployments) or [[]]
    return [turn for turn in all_turns if named & set(turn)] or all_turns[:1]


def port_set(deployments: Sequence[Deployment], name: str) -> int:
    """Return which set of ports the ranks of a deployment use: 0, or another one if an earlier pair of the inventory
    has a Spark of it."""
    several = [placed for placed in deployments if len(placed.hosts) > 1]
    return next((number for number, turn in enumerate(turns(several)) if name in turn), 0)


def same_port_refusals(deployments: Sequence[Deployment], host: str) -> Iterator[Refusal]:
    """Yield a refusal if two active engines of one open host have one port. Behind an edge they have sockets."""
    heads = [placed for placed in active_of_host(deployments, host) if placed.hosts[0] == host]
    for one, other in combinations(heads, 2):
        if one.port == other.port:
            yield SAME_PORT(
                what=f"{one.name} and {other.name} are active on {host}, and both have port {one.port}",
                expected="a port for each engine of an open Spark",
                fix=f"set another `port` for {other.name}, or `active: false` on one of them.",
            )
