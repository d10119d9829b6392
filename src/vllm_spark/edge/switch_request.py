"""Models that a request may start: where the edge sends such a request, and what the Spark's program knows. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vllm_spark.core import host_layout, paths
from vllm_spark.core.host_file import File
from vllm_spark.inventory.edge import EdgeBackend
from vllm_spark.inventory.front import EdgeOwner

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


def routes(spec: EdgeOwner) -> list[SwitchRoute]:
    """Return the routes of an edge, none if requests may start nothing."""
    return list(_routes(spec)) if spec.edge.switch_by_request else []


def _routes(spec: EdgeOwner) -> Iterator[SwitchRoute]:
    if own := _targets(spec.backends):
        yield SwitchRoute(OWN, own)
    for number, one in enumerate(spec.neighbours, 1):
        if theirs := _targets(one.backends):
            yield SwitchRoute(f"{OWN}_{number}", theirs, one.host, f"{one.address}:{one.port}")


def _targets(backends: Iterable[EdgeBackend]) -> tuple[str, ...]:
    """Return the deployments that one Spark can start alone."""
    return tuple(backend.deployment for backend in backends if backend.ranks == 1)


def files(spec: EdgeOwner) -> list[File]:
    """Return the files of the program on a host, none if requests may start nothing there."""
    if not any(route.backend == OWN for route in routes(spec)):
        return []
    limits, targets = spec.edge.limits, _targets(spec.backends)
    document = {
        "deployments": {one.deployment: list(one.models) for one in spec.backends if one.deployment in targets},
        "waiting": limits.switches_waiting,
        "stay_s": limits.switch_stay_s,
    }
    unit = (paths.TEMPLATES / host_layout.EDGE_SWITCH_UNIT).read_text(encoding="utf-8")
    program = (paths.NODE / "edge_switch.py").read_text(encoding="utf-8")
    return [
        File(host_layout.EDGE_SWITCH, program, "0755"),
        File(host_layout.EDGE_SWITCH_LIST, json.dumps(document, indent=2, sort_keys=True) + "\n", "0640"),
        File(host_layout.EDGE_SWITCH_UNIT_FILE, unit),
    ]
