"""Who can reach a deployment, from its launch on the host and from the facts of the edge. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.types import EdgeFacts
from vllm_spark.inventory import edge
from vllm_spark.inventory.edge import EdgeSettings
from vllm_spark.inventory.spec import Spec

# Flags of the engine in a launch, which has one option per line.
SOCKET = re.compile(r"(?m)^\s*--uds\b")
BIND = re.compile(r"(?m)^\s*--host (\S+)")
PORT = re.compile(r"(?m)^\s*--port (\d+)")
UNKNOWN: Mapping[str, Any] = dict.fromkeys(
    ("bind", "port", "edge", "tls", "from", "persons", "batch", "switch", "may_switch")
)


def document(spec: Spec | None, launch: str, found: EdgeFacts | None) -> dict[str, Any] | None:
    """Return who can reach a deployment; None if its launch serves no API, as that of a worker. `spec` is the active
    one of the inventory, `launch` the script on the host.

    - `open`: whether the engine itself is on the network
    - `bind`, `port`: of an open engine
    - `edge`: the state of the edge's unit, or that of its second stage if only the first is active
    - `tls`: whether clients use TLS; `from`: networks; `persons`: who has a key; `batch`: whose is of that class
    - `switch`: the state of the unit that starts models, None if requests may start nothing; `may_switch`: who may
      None: unknown, because the inventory does not have it active or the host was not asked
    """
    if SOCKET.search(launch):
        return of_edge(spec.edge.settings if spec and not spec.open else None, found)
    bind, port = BIND.search(launch), PORT.search(launch)
    if not (bind and port):
        return None
    return {**UNKNOWN, "open": bind[1] != LOOPBACK, "bind": bind[1], "port": int(port[1])}


def of_edge(settings: EdgeSettings | None, found: EdgeFacts | None) -> dict[str, Any]:
    """Return who can reach what is behind an edge, with the keys of `document`."""
    return {
        **UNKNOWN,
        "open": False,
        "edge": _state(found) if found else None,
        "tls": settings.tls != edge.OFF if settings else None,
        "from": list(settings.allow_from) if settings else None,
        "persons": list(found["keys"]) if found else None,
        "batch": list(found["batch"]) if found else None,
        **(_switch(found) if found and settings and settings.switch_by_request else {}),
    }


def _state(found: EdgeFacts) -> str | None:
    """Return the state of the first unit that is not active."""
    states = [unit.get("ActiveState") for unit in (found["unit"], found["route"])]
    return next((state for state in states if state != "active"), "active")


def _switch(found: EdgeFacts) -> dict[str, Any]:
    return {"switch": found["switch"].get("ActiveState"), "may_switch": list(found["may_switch"])}


def cell(reach: Mapping[str, Any] | None) -> str:
    """Return the text of the table."""
    if reach is None:
        return "—"
    if reach["port"]:
        return f"OPEN: all,\nhttp {reach['port']}" if reach["open"] else f"this Spark,\nhttp {reach['port']}"
    if reach["edge"] is None:
        return "edge"
    if reach["edge"] != "active":
        return f"nobody: edge\n{reach['edge']}"
    scheme = "edge, http" if reach["tls"] is False else "edge"
    persons = [f"{name} (batch)" if name in reach["batch"] else name for name in reach["persons"]]
    who = f"{scheme}:\n{', '.join(persons) if len(persons) <= 2 else f'{len(persons)} keys'}"  # noqa: PLR2004
    if reach["switch"] is None:
        return who
    may = reach["may_switch"]
    return f"{who}\nswitch: {', '.join(may) or 'nobody' if reach['switch'] == 'active' else reach['switch']}"
