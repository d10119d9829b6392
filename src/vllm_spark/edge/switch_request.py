"""Models that a request may start: where the edge sends such a request, and what the Spark's program knows. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vllm_spark.core import paths, templates
from vllm_spark.core.host_file import File
from vllm_spark.inventory.edge import EdgeBackend
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node import deployment_state, host_layout

# The backend of this Spark's own program. No deployment has an underscore in its name.
OWN = "edge_switch"


@dataclass(frozen=True, slots=True)
class SwitchRoute:
    """Where a request for an inactive deployment goes: `host` and `address` of another Spark's edge, empty for this
    Spark's own program."""

    backend: str
    deployments: tuple[str, ...]
    host: str = ""
    address: str = ""


def routes(edge: Edge) -> list[SwitchRoute]:
    """Return the routes of an edge, none if requests may start nothing."""
    return list(_routes(edge)) if edge.settings.switch_by_request else []


def _routes(edge: Edge) -> Iterator[SwitchRoute]:
    if own := _targets(edge.backends):
        yield SwitchRoute(OWN, own)
    for number, one in enumerate(edge.neighbours, 1):
        if theirs := _targets(one.backends):
            yield SwitchRoute(f"{OWN}_{number}", theirs, one.host, f"{one.address}:{one.port}")


def _targets(backends: Iterable[EdgeBackend]) -> tuple[str, ...]:
    """Return the deployments that one Spark can start alone."""
    return tuple(backend.deployment for backend in backends if backend.ranks == 1)


def files(edge: Edge) -> list[File]:
    """Return the files of the program on a host, none if requests may start nothing there."""
    if not any(route.backend == OWN for route in routes(edge)):
        return []
    limits, targets = edge.settings.limits, _targets(edge.backends)
    document = {
        "deployments": {one.deployment: list(one.models) for one in edge.backends if one.deployment in targets},
        "pairs": sorted({one.deployment for one in edge.backends if one.ranks > 1} | set(edge.parts)),
        "active_states": list(deployment_state.ACTIVE),
        "waiting": limits.switches_waiting,
        "stay_s": limits.switch_stay_s,
    }
    root = (host_layout.SWITCH_ROOT_SOCKET_FILE, host_layout.SWITCH_ROOT_UNIT_FILE)
    units = (*root, host_layout.EDGE_SWITCH_UNIT_FILE)
    program = (paths.NODE / "edge_switch.py").read_text(encoding="utf-8")
    return [
        File(host_layout.EDGE_SWITCH, program, "0755"),
        File(host_layout.EDGE_SWITCH_LIST, json.dumps(document, indent=2, sort_keys=True) + "\n", "0640"),
        *(File(path, templates.unchanged(path)) for path in units),
    ]
