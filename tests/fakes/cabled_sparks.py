"""Sparks with two QSFP ports each, cabled as a test says: the facts that their collector would read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_lldp

from vllm_spark.core.types import FabricFacts
from vllm_spark.inventory import cabling
from vllm_spark.inventory.cabling import End

SWITCH = {"id": {"type": "mac", "value": "48:a9:8a:00:00:01"}, "descr": "RouterOS", "capability": []}
LAN = "enP7s7"
NETDEVS = [netdev for port in (0, 1) for netdev in End(0, port).netdevs]


def mac(rank: int, netdev: str) -> str:
    return f"3c:6d:66:00:{rank:02x}:{[LAN, *NETDEVS].index(netdev):02x}"


def facts(  # noqa: PLR0913, PLR0917  one argument per field of a case
    fabric: str,
    sparks: int,
    cables: Sequence[Sequence[str]] = (),
    changes: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
    deaf: Sequence[str] = (),
    form: str = "mac",
) -> dict[str, FabricFacts]:
    """Return the facts of each Spark.

    `cables` are those plugged in, each as two of SPARK.PORT, `switch` and the name of another device; by default those
    of the topology. The addresses are always those of the topology. `changes`: host -> netdev -> `address` (none if
    empty), mtu, rate in Gbit/s, or `gid`, the index of the address. On the hosts `deaf` no lldpd runs. `form` is the id
    that lldpd sends of a port, mac or ifname.
    """
    links = cabling.links(fabric, sparks)
    plugged = [tuple(cable) for cable in cables] or [_named(link, fabric) for link in _cables(links, fabric)]
    ends = {one: other for cable in plugged for one, other in (cable, cable[::-1])}
    addresses = cabling.addresses(links)
    return {
        End(rank, 0).host: _spark(rank, ends, addresses, changes or {}, heard=End(rank, 0).host not in deaf, form=form)
        for rank in range(sparks)
    }


def _cables(links: Sequence[Sequence[End]], fabric: str) -> list[tuple[End, ...]]:
    return [(end,) for end in links[0]] if fabric == "switch" else [tuple(link) for link in links]


def _named(link: Sequence[End], fabric: str) -> tuple[str, ...]:
    names = tuple(f"{end.rank + 1}.{end.port}" for end in link)
    return (*names, "switch") if fabric == "switch" else names


def _spark(  # noqa: PLR0913  what a Spark is made of
    rank: int,
    ends: Mapping[str, str],
    addresses: Mapping[str, Mapping[str, str]],
    changes: Mapping[str, Mapping[str, Mapping[str, Any]]],
    *,
    heard: bool,
    form: str,
) -> FabricFacts:
    host = End(rank, 0).host
    netdevs: list[Any] = [_netdev(rank, LAN, f"10.0.0.{rank + 1}/24", 1500, up=True)]
    hcas: list[Any] = []
    interfaces = []
    for port in (0, 1):
        other = ends.get(f"{rank + 1}.{port}")
        for netdev, hca in zip(End(rank, port).netdevs, End(rank, port).hcas, strict=True):
            change = changes.get(host, {}).get(netdev, {})
            address = change.get("address", addresses[host].get(netdev, ""))
            netdevs.append(_netdev(rank, netdev, address, change.get("mtu", 9000), up=bool(other)))
            hcas.append(_hca(netdev, hca, address, change, up=bool(other)))
            interfaces += [{netdev: one} for one in _neighbours(other, form)] if other else []
    output = json.dumps({"lldp": {"interface": interfaces}})
    return {
        "netdevs": netdevs,
        "hcas": hcas,
        "devices": ["/dev/infiniband/uverbs0"],
        "ib_core": True,
        "default_route": LAN,
        "neighbours": spark_lldp.neighbours(output if heard else ""),
    }


def _netdev(rank: int, name: str, address: str, mtu: int, *, up: bool) -> dict[str, Any]:
    ip, _, prefix = address.partition("/")
    return {
        "name": name,
        "addresses": [{"address": ip, "prefix": int(prefix)}] if address else [],
        "mtu": mtu,
        "carrier": up,
        "wireless": False,
        "mac": mac(rank, name),
    }


def _hca(netdev: str, name: str, address: str, change: Mapping[str, Any], *, up: bool) -> dict[str, Any]:
    domain = "0002" if "P2" in netdev else "0000"
    speed = "32.0 GT/s PCIe"
    gid = {"index": change.get("gid", 3), "type": "RoCE v2", "address": address.partition("/")[0]}
    return {
        "name": name,
        "netdev": netdev,
        "state": "ACTIVE" if up else "DOWN",
        "rate": f"{change.get('rate', 200)} Gb/sec (4X HDR)",
        "pci": f"{domain}:01:00.{name[-1]}",
        "pci_width": 4,
        "pci_max_width": 4,
        "pci_speed": speed,
        "pci_max_speed": speed,
        "gids": [gid] if address and change.get("gid", 3) else [],
        "gids_from": "sysfs",
    }


def _neighbours(other: str, form: str) -> list[dict[str, Any]]:
    """Return what lldpd writes of the other end of a cable: each of its twins."""
    if "." not in other:
        port = {"id": {"type": "ifname", "value": "qsfp56-dd-1-1"}, "descr": "qsfp56-dd-1-1", "ttl": "120"}
        return [{"via": "LLDP", "rid": "1", "chassis": {other: SWITCH}, "port": port}]
    rank, port_number = (int(part) for part in other.split("."))
    end = End(rank - 1, port_number)
    return [
        {
            "via": "LLDP",
            "rid": "1",
            "chassis": {f"dgx-{end.host}": {"id": {"type": "mac", "value": mac(end.rank, LAN)}}},
            "port": {
                "id": {"type": form, "value": mac(end.rank, netdev) if form == "mac" else netdev},
                "descr": netdev,
                "ttl": "120",
            },
        }
        for netdev in end.netdevs
    ]
