"""The firewall table of a host: a pure function of its edge, its deployment and its facts. Its text is
templates/firewall.nft.j2.

The table says from where clients reach the edge. The launch of a pair, which knows the other rank, adds its ports.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from vllm_spark.core import templates
from vllm_spark.core.host_file import File
from vllm_spark.core.ports import IMAGES_PORT, LOOPBACK, WEIGHTS_PORT
from vllm_spark.core.types import Facts, FirewallFacts
from vllm_spark.edge import config
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.node import host_layout

# Before Docker's DNAT (-100) and after the kernel has found the connection (-200).
PRIORITY = -110
EVERYWHERE = frozenset({"0.0.0.0/0", "::/0"})


@dataclass(frozen=True, slots=True)
class Entrance:
    """A port of clients. `networks`: family of nft -> the networks that reach the port, None for all of them."""

    port: int
    use: str
    networks: Mapping[str, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class FirewallSteps:
    """What a deploy installs. Both texts are empty if the host has them, and runs them, already. `package`: the host
    lacks nft."""

    table: str = ""
    unit: str = ""
    package: bool = False

    @property
    def differs(self) -> bool:
        """Return True if something is to be installed or loaded."""
        return bool(self.table)


def wanted(intent: HostIntent) -> bool:
    """Return True for a host with a closed edge, or with one of several ranks."""
    edge, rank = intent.edge, intent.rank
    return (edge is not None and edge.is_wanted) or (rank is not None and len(rank.deployment.hosts) > 1)


def steps(intent: HostIntent, facts: Facts) -> FirewallSteps:
    """Return the steps of a host. A host that wants no table keeps the one that it has until `remove`: a launch of a
    pair that is not active needs it. If the inventory opens the host, that table lets every client in."""
    if not intent.edge:
        return FirewallSteps()
    found = facts["table"]
    if not wanted(intent) and not (intent.edge.settings.open and found["files"]):
        return FirewallSteps()
    text, unit = table(intent, found["ssh_ports"]), unit_file()
    files = (File(host_layout.FIREWALL, text), File(host_layout.FIREWALL_UNIT_FILE, unit))
    same = not any(file.differs(found["files"]) for file in files)
    state = found["unit"]
    stays = found["loaded"] and state.get("UnitFileState") == "enabled" and state.get("ActiveState") == "active"
    if same and stays and state.get("NeedDaemonReload") != "yes":
        return FirewallSteps()
    return FirewallSteps(text, unit, package=not found["program"])


def table(intent: HostIntent, ssh_ports: Iterable[int]) -> str:
    """Return the file of the table. `ssh_ports` are those of the host's sshd, which no rule closes."""
    text: str = (
        templates.templates()
        .get_template("firewall.nft.j2")
        .render(
            path=host_layout.FIREWALL,
            unit=host_layout.FIREWALL_UNIT,
            table=host_layout.FIREWALL_TABLE,
            priority=PRIORITY,
            ssh_ports=sorted(set(ssh_ports)),
            entrances=list(entrances(intent)),
            pull_ports=(WEIGHTS_PORT, IMAGES_PORT),
        )
    )
    return text


def unit_file() -> str:
    """Return the unit, the same text on every host."""
    return templates.unchanged(host_layout.FIREWALL_UNIT)


def entrances(intent: HostIntent) -> Iterator[Entrance]:
    """Yield the ports of clients, each once."""
    edge, rank = intent.edge, intent.rank
    if not edge:
        return
    settings = edge.settings
    if settings.open:
        own = (rank.deployment.port,) if rank and rank.rank == 0 else ()
        for port in sorted({*own, *(rank.other_ports if rank else ())}):
            yield Entrance(port, "clients", _by_family(EVERYWHERE))
        return
    clients = _by_family(settings.allow_from)
    for port in dict.fromkeys(_client_ports(edge)):
        yield Entrance(port, "edge", clients)
    if edge.is_asked:
        others = _by_family((*settings.allow_from, *settings.site.values()))
        yield Entrance(settings.site_port, "other edges", others)
    if settings.metrics_from:
        yield Entrance(settings.metrics_port, "metrics", _by_family(settings.metrics_from))


def lines(planned: FirewallSteps, intent: HostIntent, others: FirewallFacts | None, *, acts: bool) -> Iterator[str]:
    """Yield what an operator reads before the table changes. The others of the host are named: they decide too."""
    if not planned.differs:
        return
    ports = [str(entrance.port) for entrance in entrances(intent)]
    what = f"who reaches {', '.join(ports)}" if ports else "the ports of the pair"
    yield f"the firewall table {'will' if acts else 'would'} be loaded, which decides {what}; it only drops"
    for port in ports:
        if others and others["ufw"]:
            yield f"ufw is on and decides too: clients need `sudo ufw allow {port}/tcp`"
        if others and others["firewalld"]:
            yield f"firewalld is on and decides too: clients need `sudo firewall-cmd --permanent --add-port={port}/tcp`"


def _client_ports(edge: Edge) -> Iterator[int]:
    for address, _, port in (one.rpartition(":") for one in config.listeners(edge)):
        if address != LOOPBACK:
            yield int(port)


def _by_family(networks: Iterable[str]) -> dict[str, tuple[str, ...] | None]:
    """Return the networks by family. nft accepts no overlapping ones in a set."""
    parsed = [ipaddress.ip_network(network) for network in networks]
    ipv4 = ipaddress.collapse_addresses(one for one in parsed if isinstance(one, ipaddress.IPv4Network))
    ipv6 = ipaddress.collapse_addresses(one for one in parsed if isinstance(one, ipaddress.IPv6Network))
    # How nft names the families.
    found = {"ip": tuple(str(one) for one in ipv4), "ip6": tuple(str(one) for one in ipv6)}
    return {family: None if EVERYWHERE & {*some} else some for family, some in found.items()}
