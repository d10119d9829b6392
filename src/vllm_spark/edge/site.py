"""The routes of an edge that serves the models of the whole site: which Sparks have a name, and what is up. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_spark.inventory.edge import EdgeBackend
from vllm_spark.inventory.edge_backends import Neighbour
from vllm_spark.inventory.host_edge import Edge

# The longest name in the subject of a certificate (RFC 5280).
MAX_COMMON_NAME = 64


@dataclass(frozen=True, slots=True)
class Remote:
    """The edge of another Spark as a server of a route. `sequences` are those of the engine behind it."""

    host: str
    address: str
    sequences: int | None


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """Names that the same deployments serve.

    - `backend`: the name of the route's backend; empty if only deployments of this Spark have the names
    - `up`: the condition of HAProxy that one of them is up
    - `local`: deployments of this Spark; `remote`: edges of other Sparks
    - `title`: the name that stands for them in a message
    - `switch`: the deployment that a switch would start; `role`: what the deployments are for
    - `listed`: a pattern of the list that another edge answers while it serves all names
    """

    names: tuple[str, ...]
    backend: str
    up: str
    local: tuple[EdgeBackend, ...]
    remote: tuple[Remote, ...]
    title: str
    switch: str
    role: str

    @property
    def listed(self) -> str:
        # The list is sorted, and has a space around each name. A dot is the only special character of a name.
        return f" {' (.* )?'.join(name.replace('.', '[.]') for name in self.names)} "

    @property
    def entries(self) -> str:
        """The names as entries of /v1/models."""
        return ",".join(
            json.dumps({"id": name, "object": "model", "created": 0, "owned_by": "vllm"}, separators=(",", ":"))
            for name in self.names
        )

    @property
    def places(self) -> str:
        """Where the names are served, for a person who reads the configuration."""
        local = [f"{one.deployment} of this Spark" for one in self.local]
        return ", ".join([*local, *(one.host for one in self.remote)])


@dataclass(frozen=True, slots=True)
class SiteRoutes:
    """What the template of an edge of a site needs.

    - `groups`: of all names of the site
    - `own`: name -> the condition that a deployment of this Spark serves it, which other edges ask
    - `members`: the names in the certificates of the other edges; `addresses`: where they are
    """

    port: int
    groups: tuple[ModelRoute, ...]
    own: Mapping[str, str]
    members: tuple[str, ...]
    addresses: tuple[str, ...]

    @property
    def routes(self) -> list[ModelRoute]:
        """The groups for which more than this Spark is asked."""
        return [group for group in self.groups if group.backend]


def routes(edge: Edge) -> SiteRoutes | None:
    """Return the routes of an edge of a site, None for an edge that serves only its own Spark."""
    if not edge.joins:
        return None
    # A Spark that serves no model may forward too.
    others = {host: address for host, address in sorted(edge.settings.site.items()) if host != edge.host}
    return SiteRoutes(
        port=edge.settings.site_port,
        groups=tuple(_groups(edge.backends, edge.neighbours)),
        own={name: _any_up(holders) for name, holders in sorted(_by_name(edge.backends).items())},
        members=tuple(host.lower()[:MAX_COMMON_NAME] for host in others),
        addresses=tuple(others.values()),
    )


def listed(edge: Edge) -> tuple[ModelRoute, ...]:
    """Return the groups of names that the edge itself lists: of a site, and of several roles, because each engine lists
    only its own model."""
    found = routes(edge)
    return found.groups if found else tuple(_groups(edge.backends, ())) if edge.special_roles else ()


def _by_name(backends: Iterable[EdgeBackend]) -> dict[str, list[EdgeBackend]]:
    """Return the deployments of each name."""
    found: dict[str, list[EdgeBackend]] = {}
    for backend in backends:
        for name in dict.fromkeys(backend.models):
            found.setdefault(name, []).append(backend)
    return found


def _groups(own: Sequence[EdgeBackend], neighbours: Sequence[Neighbour]) -> list[ModelRoute]:
    """Return the groups of names, in the order of their first names. Names of one group always come and go together."""
    everywhere = _by_name([*own, *(backend for one in neighbours for backend in one.backends)])
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, holders in sorted(everywhere.items()):
        groups.setdefault(tuple(holder.deployment for holder in holders), []).append(name)
    found = []
    for number, (deployments, names) in enumerate(groups.items(), 1):
        local = tuple(backend for backend in own if backend.deployment in deployments)
        remote = tuple(_remote(one, deployments) for one in neighbours if _holders(one, deployments))
        backend = f"site_{number}" if remote else ""
        up = f"up_{backend}" if backend else _any_up(local)
        first = everywhere[names[0]][0]
        title = next(name for name in first.models if name in names)
        found.append(ModelRoute(tuple(names), backend, up, local, remote, title, first.deployment, first.role))
    return found


def _holders(neighbour: Neighbour, deployments: Iterable[str]) -> list[EdgeBackend]:
    return [backend for backend in neighbour.backends if backend.deployment in deployments]


def _remote(neighbour: Neighbour, deployments: Iterable[str]) -> Remote:
    """Return a Spark as one server, whichever of its deployments is active."""
    counts = [backend.sequences for backend in _holders(neighbour, deployments)]
    most = None if None in counts else max(count for count in counts if count)
    return Remote(neighbour.host, f"{neighbour.address}:{neighbour.port}", most)


def _any_up(backends: Iterable[EdgeBackend]) -> str:
    return " || ".join(f"up_{backend.deployment}" for backend in backends)
