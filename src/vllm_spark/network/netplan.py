"""The direct link of two Sparks: what the inventory asks of it, judged for both ends and one box, as a netplan file.

Facts are what plugins/module_utils/spark_fabric.py and plugins/modules/spark_netplan.py return. Pure: no I/O, no
Ansible. fabric.py judges a link that is there, whoever made it; this makes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import AddressValueError, IPv4Interface, IPv4Network, NetmaskValueError
from typing import Any

from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Facts

FABRIC_WAY_LOST = register("fabric-way-lost", runbook="fabric-way-lost")
FABRIC_NETPLAN_MISSING = register("fabric-netplan-missing", runbook="fabric-netplan")
FABRIC_NETDEV = register("fabric-netdev", runbook="fabric-netdev")
FABRIC_MANAGEMENT = register("fabric-management", runbook="fabric-management")
FABRIC_NETPLAN_UNREADABLE = register("fabric-netplan-unreadable", runbook="fabric-netplan")
FABRIC_NETPLAN_CONFLICT = register("fabric-netplan-conflict", runbook="fabric-netplan")
FABRIC_PING_SIZE = register("fabric-ping-size", runbook="fabric-mtu")
FABRIC_PING = register("fabric-ping", runbook="fabric-no-answer")
FABRIC_PLAN = register("fabric-plan", runbook="fabric-plan")


# After NVIDIA's 40-cx7.yaml, and before 90-NM-*, which NetworkManager writes.
FILE = "/etc/netplan/60-vllm-spark-fabric.yaml"
# The only folder of netplan's three whose files are the owner's.
OWNERS_FOLDER = "/etc/netplan/"

KEYS = {"peer", "addresses", "mtu"}
TWINS = 2
DEFAULT_MTU = 9000
# What a ConnectX-7 takes; below 1280 no host may go.
MTU_RANGE = range(1280, 9979)
NETDEV = re.compile(r"[A-Za-z0-9_.-]{1,15}")
# IPv4 and ICMP headers, which a ping's size does not count.
HEADERS = 28
SMALL_PING = 56


@dataclass(frozen=True, slots=True)
class LinkPort:
    """One netdev of a socket and its address."""

    netdev: str
    address: IPv4Interface

    @property
    def subnet(self) -> IPv4Network:
        return self.address.network


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """`vllm_fabric` of one host."""

    host: str
    peer: str
    mtu: int
    twins: tuple[LinkPort, ...]


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """Both ends, which the inventory has made fit for each other."""

    mine: LinkConfig
    other: LinkConfig

    @property
    def rails(self) -> list[tuple[LinkPort, LinkPort]]:
        """(my end, the peer's end) per subnet."""
        ends = {twin.subnet: twin for twin in self.other.twins}
        return [(twin, ends[twin.subnet]) for twin in self.mine.twins]


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """What the role carries out on one box. `live`: the netdevs already have what the file says. `known_as` is how
    the peer's host keys are to be known here."""

    host: str
    peer: str
    path: str
    content: str
    move: tuple[str, ...]
    addresses: dict[str, str]
    mtu: int
    live: bool
    known_as: str
    pings: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pair(host: str, fabrics: Mapping[str, Any], sparks: Sequence[str], limit: Sequence[str]) -> LinkEnds:
    """The two ends, from the inventory alone: `fabrics` is vllm_fabric by host. Raises RefusedError."""
    mine, refusals = _wish(host, fabrics[host], sparks)
    if mine is None:
        raise RefusedError(refusals)
    if not fabrics.get(mine.peer):
        refusals.append(_plan_refusal(f"{mine.peer}, the peer of {host}, has no vllm_fabric", "one on both hosts"))
        raise RefusedError(refusals)
    other, faults = _wish(mine.peer, fabrics[mine.peer], sparks)
    refusals += faults
    if other is None:
        raise RefusedError(refusals)
    refusals += _both(mine, other)
    if mine.peer not in limit:
        refusals.append(
            _plan_refusal(
                f"{host} is to be linked with {mine.peer}, which this run leaves out",
                "both ends in one run",
                f"-l {host},{mine.peer}.",
            )
        )
    if refusals:
        raise RefusedError(refusals)
    return LinkEnds(mine, other)


def plan(ends: LinkEnds, fabric: Facts, netplan: Facts, *, replace: bool) -> LinkPlan:
    """What to do on the box of `ends.mine`. Raises RefusedError with every fault of the box."""
    refusals = list(_box(ends.mine, fabric, netplan, replace=replace))
    if refusals:
        raise RefusedError(refusals)
    mine, other = ends.mine, ends.other
    return LinkPlan(
        host=mine.host,
        peer=mine.peer,
        path=FILE,
        content=netplan_yaml(mine),
        move=tuple(file["path"] for file in _conflicts(mine, netplan)),
        addresses={twin.netdev: str(twin.address) for twin in mine.twins},
        mtu=mine.mtu,
        live=_live(mine, fabric),
        known_as=",".join([mine.peer, *(str(twin.address.ip) for twin in other.twins)]),
        pings=tuple(
            {"netdev": twin.netdev, "subnet": str(twin.subnet), "peer": str(end.address.ip), "size": size}
            for twin, end in ends.rails
            for size in (mine.mtu - HEADERS, SMALL_PING)
        ),
    )


def netplan_yaml(wish: LinkConfig) -> str:
    """The netplan file. No renderer: the box keeps its own, NetworkManager on DGX OS. `optional` lets it boot without
    the cable; no route and no link-local address, because nothing but the pair is to go this way."""
    lines = [
        f"# vllm-spark: the direct link to {wish.peer}. fabric.yml writes this file;",
        "# fabric.yml -e vllm_fabric_state=absent brings back what was here before.",
        "network:",
        "  version: 2",
        "  ethernets:",
    ]
    for twin in wish.twins:
        lines += [
            f"    {twin.netdev}:",
            f"      addresses: [{twin.address}]",
            f"      mtu: {wish.mtu}",
            "      dhcp4: false",
            "      dhcp6: false",
            "      link-local: []",
            "      optional: true",
        ]
    return "\n".join(lines) + "\n"


def judge_pings(plan_: Facts, pings: Sequence[Facts], netdevs: Mapping[str, Facts]) -> tuple[list[str], list[Refusal]]:
    """(a line per subnet whose full-size pings came back, a refusal per subnet whose did not). `pings` are the plan's,
    each with the `rc` and `said` of its command; `netdevs` is what the box has after netplan was applied."""
    lines, refusals = [], []
    for full, small in zip(pings[::2], pings[1::2], strict=True):
        if full["rc"] == 0:
            lines.append(f"✓ {_way(full)}: {_came_back(full)}")
        else:
            refusals.append(_no_answer(plan_, full, small, netdevs.get(full["netdev"], {})))
    return lines, refusals


def lost_refusal(host: str, guard_s: int, said: str) -> Refusal:
    """The box cannot be reached over a new connection after netplan was applied."""
    return FABRIC_WAY_LOST(
        what=f"{host} does not answer over a new connection since netplan was applied ({said})",
        expected=f"an answer; without one the box puts its old files back by itself, {guard_s} s after they were "
        "changed",
        fix=f"wait for that, then ssh {host} sudo journalctl -u vllm-spark-fabric-guard and sudo netplan --debug "
        "generate.",
    )


def _wish(host: str, asked: Any, sparks: Sequence[str]) -> tuple[LinkConfig | None, list[Refusal]]:
    """(the wish, or None where its form is wrong; every fault of it)."""
    refusals = list(_form(host, asked, sparks))
    if refusals:
        return None, refusals
    twins = []
    for netdev, text in asked["addresses"].items():
        address = _address(text)
        if isinstance(address, str):
            refusals.append(_plan_refusal(f"{host} {netdev}: {text} {address}", "an address as 192.168.177.11/24"))
        else:
            twins.append(LinkPort(netdev, address))
    if refusals:
        return None, refusals
    wish = LinkConfig(host, asked["peer"], asked.get("mtu", DEFAULT_MTU), tuple(twins))
    first, second = wish.twins
    if first.subnet.overlaps(second.subnet):
        refusals.append(
            _plan_refusal(
                f"{host} has {first.netdev} {first.address} and {second.netdev} {second.address} in one subnet",
                "a subnet for each of the two, because Linux sends a subnet's traffic through one netdev",
                "192.168.177.x/24 for one and 192.168.178.x/24 for the other.",
            )
        )
    return wish, refusals


def _form(host: str, asked: Any, sparks: Sequence[str]) -> Iterator[Refusal]:
    if not isinstance(asked, Mapping) or not set(asked) <= KEYS or not {"peer", "addresses"} <= set(asked):
        seen = ", ".join(map(str, asked)) if isinstance(asked, Mapping) else repr(asked)
        yield _plan_refusal(f"{host} has vllm_fabric with {seen}", "peer, addresses and, if not 9000, mtu")
        return
    peer, addresses, mtu = asked["peer"], asked["addresses"], asked.get("mtu", DEFAULT_MTU)
    if peer == host or peer not in sparks:
        yield _plan_refusal(f"{host} has the peer {peer}", f"another of {', '.join(sparks)}")
    if not isinstance(addresses, Mapping) or len(addresses) != TWINS:
        seen = ", ".join(map(str, addresses)) if isinstance(addresses, Mapping) else repr(addresses)
        yield _plan_refusal(
            f"{host} has addresses for {seen or 'nothing'}", "the two netdevs of one socket, its PCIe twins"
        )
    else:
        bad = [str(name) for name in addresses if not NETDEV.fullmatch(str(name))]
        if bad:
            yield _plan_refusal(f"{host} names {', '.join(bad)}", "names of netdevs, as ip -br link shows them")
    if not isinstance(mtu, int) or isinstance(mtu, bool) or mtu not in MTU_RANGE:
        yield _plan_refusal(
            f"{host} has mtu {mtu!r}", f"a number from {MTU_RANGE.start} to {MTU_RANGE.stop - 1}", "9000, or 1500."
        )


def _address(text: Any) -> IPv4Interface | str:
    """The address of a host in a subnet, or what is wrong with it."""
    try:
        address = IPv4Interface(str(text))
    except (AddressValueError, NetmaskValueError, ValueError):
        return "is no IPv4 address"
    if "/" not in str(text):
        return "has no prefix"
    ip, subnet = address.ip, address.network
    if ip.is_loopback or ip.is_multicast or ip.is_link_local or ip.is_unspecified or ip.is_reserved:
        return "cannot be a host's of its own"
    if subnet.num_addresses > TWINS and ip in (subnet.network_address, subnet.broadcast_address):
        return f"is the {'network' if ip == subnet.network_address else 'broadcast'} address of {subnet}"
    if subnet.num_addresses < TWINS:
        return "has no room for the peer"
    return address


def _both(mine: LinkConfig, other: LinkConfig) -> Iterator[Refusal]:
    """What the two ends must have in common, and what not."""
    if other.peer != mine.host:
        yield _plan_refusal(
            f"{mine.host} has the peer {mine.peer}, and {other.host} has {other.peer}", "each other as the peer"
        )
    if mine.mtu != other.mtu:
        yield _plan_refusal(
            f"{mine.host} has mtu {mine.mtu} and {other.host} {other.mtu}",
            "the same on both, because the larger packets would be lost",
        )
    subnets = [", ".join(str(subnet) for subnet in sorted(twin.subnet for twin in end.twins)) for end in (mine, other)]
    if subnets[0] != subnets[1]:
        yield _plan_refusal(
            f"{mine.host} has the subnets {subnets[0]} and {other.host} {subnets[1]}", "the same two on both"
        )
    same = {str(twin.address.ip) for twin in mine.twins} & {str(twin.address.ip) for twin in other.twins}
    if same:
        yield _plan_refusal(
            f"{mine.host} and {other.host} both have {', '.join(sorted(same))}",
            "for every netdev an address of its own",
        )


def _box(wish: LinkConfig, fabric: Facts, netplan: Facts, *, replace: bool) -> Iterator[Refusal]:
    if not netplan["netplan"]:
        yield FABRIC_NETPLAN_MISSING(
            what=f"{wish.host} has no netplan",
            expected="netplan, with which DGX OS configures its network",
            fix=f"ssh {wish.host} sudo apt-get install netplan.io; or leave vllm_fabric out and configure the link "
            "with what the box has.",
        )
        return
    yield from _netdevs(wish, fabric)
    yield from _management(wish, fabric, netplan)
    yield from _taken(wish, fabric)
    yield from _files(wish, fabric, netplan, replace=replace)


def _netdevs(wish: LinkConfig, fabric: Facts) -> Iterator[Refusal]:
    known = {entry["name"]: entry for entry in fabric["netdevs"]}
    for twin in wish.twins:
        found = known.get(twin.netdev)
        if found is None or found["wireless"]:
            seen = f"is a WiFi card on {wish.host}" if found else f"is not on {wish.host}"
            error = f" ({fabric['error']})" if fabric.get("error") else ""
            yield FABRIC_NETDEV(
                what=f"{twin.netdev} {seen}, which has {', '.join(known) or 'no netdev'}{error}",
                expected="the two netdevs of the socket with the cable",
                fix=f"ssh {wish.host} ibdev2netdev names them; write the two with (Up) into vllm_fabric.addresses.",
            )


def _management(wish: LinkConfig, fabric: Facts, netplan: Facts) -> Iterator[Refusal]:
    """The way by which this toolkit, or anything else, reaches the box is nobody's to configure here."""
    for twin in wish.twins:
        uses = [
            use
            for use, netdev in (
                ("has the default route", fabric["default_route"]),
                ("carries this connection", netplan["reached_by"]),
            )
            if netdev == twin.netdev
        ]
        if uses:
            yield FABRIC_MANAGEMENT(
                what=f"{twin.netdev} of {wish.host} {' and '.join(uses)}",
                expected="netdevs that only the pair uses",
                fix=f"name the fabric's netdevs in vllm_fabric.addresses (ssh {wish.host} ibdev2netdev), and reach "
                "the box over another network.",
            )


def _taken(wish: LinkConfig, fabric: Facts) -> Iterator[Refusal]:
    mine = {twin.netdev for twin in wish.twins}
    for entry in fabric["netdevs"]:
        for found in entry["addresses"] if entry["name"] not in mine else []:
            there = IPv4Interface(f"{found['address']}/{found['prefix']}")
            for twin in wish.twins:
                if twin.subnet.overlaps(there.network):
                    yield _plan_refusal(
                        f"{wish.host} has {there.network} on {entry['name']} already, and {twin.netdev} is to get "
                        f"{twin.address}",
                        "a subnet that the box uses for nothing else",
                        "other subnets for both hosts.",
                    )


def _files(wish: LinkConfig, fabric: Facts, netplan: Facts, *, replace: bool) -> Iterator[Refusal]:
    for file in netplan["files"]:
        if file["error"]:
            yield FABRIC_NETPLAN_UNREADABLE(
                what=f"{file['path']} on {wish.host}: {file['error']}",
                expected="files that netplan can read, or it applies none",
                fix=f"ssh {wish.host} sudo netplan generate tells the line.",
            )
    fabric_netdevs = {twin.netdev for twin in wish.twins} | {hca["netdev"] for hca in fabric["hcas"]}
    for file in _conflicts(wish, netplan):
        more = sorted(set(file["netdevs"]) - fabric_netdevs) + list(file["more"])
        movable = file["path"].startswith(OWNERS_FOLDER) and not more
        if movable and replace:
            continue
        seen = ", ".join(sorted({twin.netdev for twin in wish.twins} & set(file["netdevs"])))
        if movable:
            fix = "vllm_fabric_replace: true moves the file into the journal; vllm_fabric_state=absent brings it back."
        else:
            fix = f"take {seen} out of {file['path']} by hand, then sudo netplan apply."
        yield FABRIC_NETPLAN_CONFLICT(
            what=f"{file['path']} on {wish.host} configures {seen} already"
            + (f", and also {', '.join(more)}" if more else ""),
            expected=f"one file for them, {FILE}: netplan would join the addresses of both",
            fix=fix,
        )


def _conflicts(wish: LinkConfig, netplan: Facts) -> list[Facts]:
    mine = {twin.netdev for twin in wish.twins}
    return [file for file in netplan["files"] if file["path"] != FILE and mine & set(file["netdevs"])]


def _live(wish: LinkConfig, fabric: Facts) -> bool:
    """Whether the netdevs have what the file says. One without a cable gets no address, and is not waited for."""
    known = {entry["name"]: entry for entry in fabric["netdevs"]}
    for twin in wish.twins:
        found = known[twin.netdev]
        has = {f"{entry['address']}/{entry['prefix']}" for entry in found["addresses"]}
        if found["carrier"] and (found["mtu"] != wish.mtu or str(twin.address) not in has):
            return False
    return True


def _no_answer(plan_: Facts, full: Facts, small: Facts, netdev: Facts) -> Refusal:
    said = full["said"].strip().splitlines()
    why = next((line for line in said if "error" in line or "loss" in line), said[-1] if said else "no output")
    if small["rc"] == 0:
        return FABRIC_PING_SIZE(
            what=f"{plan_['host']}: {_way(full)}: {small['size']} bytes come back and {full['size']} undivided do not "
            f"({why})",
            expected=f"MTU {plan_['mtu']} on both ends and in whatever is between them",
            fix=f"a direct cable; or a switch that carries {plan_['mtu']}; or vllm_fabric.mtu: 1500 on both hosts.",
        )
    cable = "a cable" if netdev.get("carrier") else "no cable, or a peer that is off"
    return FABRIC_PING(
        what=f"{plan_['host']}: {_way(full)}: no answer ({why}); {full['netdev']} has {cable}",
        expected="the peer's answer on each subnet",
        fix=f"see that the cable joins the sockets that vllm_fabric names on {plan_['host']} and {plan_['peer']} "
        "(ibdev2netdev says which are Up), then run fabric.yml again.",
    )


def _way(ping: Facts) -> str:
    return f"{ping['subnet']} {ping['netdev']} → {ping['peer']}"


def _came_back(ping: Facts) -> str:
    """ "3 of 3 with 8972 bytes undivided, 0.14 ms" from ping's own summary."""
    count = re.search(r"(\d+) packets transmitted, (\d+) received", ping["said"])
    times = re.search(r"= [\d.]+/([\d.]+)/", ping["said"])
    answers = f"{count[2]} of {count[1]}" if count else "answers"
    return f"{answers} with {ping['size']} bytes undivided" + (f", {times[1]} ms" if times else "")


def _plan_refusal(
    what: str, expected: str, fix: str = "correct vllm_fabric in the inventory of both hosts."
) -> Refusal:
    return FABRIC_PLAN(
        what=what,
        expected=expected,
        fix=fix,
    )
