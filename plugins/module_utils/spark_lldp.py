"""The neighbours that lldpd hears on each netdev, from the JSON of `lldpcli -f json show neighbors`.

lldpcli writes a list of one entry as that entry, and names a neighbour's chassis by its system name, if it has one
(lldpd 1.0.16; lldpd/lldpd#369, netenglabs/suzieq#259).
"""

from __future__ import annotations

import json
from typing import Any

FIELDS = ("netdev", "name", "chassis", "port", "description")
COMMAND = ("lldpcli", "-f", "json", "show", "neighbors")


def neighbours(output: str) -> list[dict[str, str]] | None:
    """Return the neighbours, or None without a document: lldpd is not there, does not run, or is not asked as root."""
    try:
        documents = listed(json.loads(output)["lldp"])
    except (ValueError, KeyError, TypeError):
        return None
    interfaces = [one for document in documents for one in listed(document.get("interface"))]
    heard = ((netdev, entry) for one in interfaces for netdev, entries in one.items() for entry in listed(entries))
    return [neighbour(netdev, entry) for netdev, entry in heard]


def neighbour(netdev: str, entry: dict[str, Any]) -> dict[str, str]:
    """Return one neighbour of a netdev: the system's name, the id of its chassis, the id and the description of its
    port. An id is a MAC as a rule. A value that it does not send is empty."""
    name, chassis, port = "", entry.get("chassis") or {}, entry.get("port") or {}
    if len(chassis) == 1 and "id" not in chassis:
        [(name, chassis)] = chassis.items()
    ids = [each.get("id", {}) for each in (chassis, port)]
    macs = [id_.get("value", "").lower() if id_.get("type") == "mac" else id_.get("value", "") for id_ in ids]
    return dict(zip(FIELDS, (netdev, name, *macs, port.get("descr", "")), strict=True))


def listed(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list, or the one object that stands in its place."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]
