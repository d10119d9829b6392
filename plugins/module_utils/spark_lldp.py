"""The neighbours that lldpd hears on each netdev, from the JSON of `lldpcli -f json show neighbors`.

lldpcli writes a list of one entry as that entry, and names a neighbour's chassis by its system name, if it has one
(lldpd 1.0.16; lldpd/lldpd#369, netenglabs/suzieq#259).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

COMMAND = ("lldpcli", "-f", "json", "show", "neighbors")


def neighbours(output: str) -> list[dict[str, str]] | None:
    """Return the neighbours, or None without a document: lldpd is not there, does not run, or is not asked as root."""
    try:
        found = listed(json.loads(output)["lldp"])
    except (ValueError, KeyError, TypeError):
        return None
    return [
        neighbour(netdev, entry)
        for document in found
        for one in listed(document.get("interface"))
        for netdev, entries in one.items()
        for entry in listed(entries)
    ]


def neighbour(netdev: str, entry: dict[str, Any]) -> dict[str, str]:
    """Return one neighbour of a netdev: the system's name, the id of its chassis, the id and the description of its port.
    An id is a MAC as a rule. A value that it does not send is empty."""
    name, chassis = "", entry.get("chassis") or {}
    if len(chassis) == 1 and "id" not in chassis:
        [(name, chassis)] = chassis.items()
    port = entry.get("port") or {}
    values = [(each.get("id") or {}).get("value", "") for each in (chassis, port)]
    return {
        "netdev": netdev,
        "name": name,
        "chassis": values[0].lower(),
        "port": values[1].lower() if (port.get("id") or {}).get("type") == "mac" else values[1],
        "description": port.get("descr", ""),
    }


def listed(value: object) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, or the one object that stands in its place."""
    yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict))
