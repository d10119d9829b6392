"""Find Sparks by mDNS (RFC 6762): hosts that offer ssh under a name of the factory.

It runs on the machine that deploys, on Linux and macOS, and on a Spark, for what is at the end of its cable. It asks on
port 5353, so that the answers come to the group: a firewall that lets mDNS in, as ufw does, lets them in too.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

FACTORY = re.compile(r"(?:spark|gx10|promaxgb10)-[a-z0-9-]+", re.IGNORECASE)
GROUPS = {socket.AF_INET: "224.0.0.251", socket.AF_INET6: "ff02::fb"}
PORT = 5353
# A question for the PTR records of _ssh._tcp.local, which the Avahi of DGX OS has.
QUESTION = struct.pack("!6H", 0, 0, 1, 0, 0, 0) + b"\x04_ssh\x04_tcp\x05local\x00" + struct.pack("!2H", 12, 1)
IS_ANSWER = 0x8000
PTR, SRV = 12, 33
# Linux gives a socket of IPv4 what comes in on every netdev, unless this is 0. Python has no name for it.
IP_MULTICAST_ALL = 49
WAIT_S, ROUNDS, PACKET = 2.0, 2, 9000
RDMA = Path("/sys/class/infiniband")


class Answer(NamedTuple):
    """A host that answered: its name, the netdev of this machine, and the address that the answer came from."""

    name: str
    netdev: str
    address: str


def cables(folder: Path = RDMA) -> set[str]:
    """Return the netdevs of this machine's ConnectX."""
    return {netdev.name for netdev in folder.glob("*/device/net/*")}


def ask(netdevs: Collection[str] = (), wait_s: float = WAIT_S) -> list[Answer]:
    """Return the Sparks that answer within `wait_s` on these netdevs, or on all. IPv4 addresses come first."""
    asking = {found: name for name, found in _sockets(netdevs)}
    answers: set[Answer] = set()
    try:
        for _ in range(ROUNDS):
            for asked in asking:
                with suppress(OSError):
                    asked.sendto(QUESTION, (GROUPS[asked.family], PORT))
            until = time.monotonic() + wait_s / ROUNDS
            while (left := until - time.monotonic()) > 0:
                for ready in select.select(list(asking), [], [], left)[0]:
                    packet, sender = ready.recvfrom(PACKET)
                    answers |= {_answer(name, asking[ready], sender) for name in sparks(packet)}
    finally:
        for each in asking:
            each.close()
    return sorted(answers, key=lambda answer: (answer.name, ":" in answer.address, answer.netdev))


def _answer(name: str, netdev: str, sender: tuple[Any, ...]) -> Answer:
    """Return an answer. With IPv6 the sender's scope says by which netdev it came: the group is one for all."""
    address, scope = sender[0], sender[3] if len(sender) > 2 else 0  # noqa: PLR2004  IPv4 has two fields
    if not scope:
        return Answer(name, netdev, address)
    netdev = socket.if_indextoname(scope)
    return Answer(name, netdev, f"{address.partition('%')[0]}%{netdev}")


def _sockets(netdevs: Collection[str]) -> Iterator[tuple[str, socket.socket]]:
    """Yield a socket per netdev and family that can ask."""
    for index, name in socket.if_nameindex():
        for family in GROUPS if not netdevs or name in netdevs else ():
            found = socket.socket(family, socket.SOCK_DGRAM)
            try:
                _join(found, index)
            except OSError:
                found.close()
            else:
                yield name, found


def _join(asking: socket.socket, index: int) -> None:
    """Bind a socket beside those of other programs, and join the group on one netdev."""
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    group = socket.inet_pton(asking.family, GROUPS[asking.family])
    if asking.family == socket.AF_INET:
        request = group + struct.pack("=4xi", index)
        asking.bind(("", PORT))
        if sys.platform == "linux":
            asking.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    else:
        asking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        asking.bind(("::", PORT))
        asking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("=I", index))
        asking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        asking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)


def sparks(packet: bytes) -> set[str]:
    """Return the names of Sparks in an answer, as NAME.local. A packet that is none, or is cut, has none."""
    with suppress(struct.error, IndexError, UnicodeDecodeError):
        named = (FACTORY.match(labels[0]) for labels in _names(packet) if labels and labels[-1] == "local")
        return {f"{match[0].lower()}.local" for match in named if match}
    return set()


def _names(packet: bytes) -> Iterator[list[str]]:
    """Yield each name of an answer's records, as labels."""
    _, flags, questions, *counts = struct.unpack_from("!6H", packet)
    place = 12
    for _ in range(questions):
        place = _name(packet, place)[1] + 4
    for _ in range(sum(counts) if flags & IS_ANSWER else 0):
        owner, place = _name(packet, place)
        kind, _, _, size = struct.unpack_from("!2HIH", packet, place)
        place += 10
        yield owner
        if kind in (PTR, SRV):
            yield _name(packet, place + (6 if kind == SRV else 0))[0]
        place += size


def _name(packet: bytes, place: int) -> tuple[list[str], int]:
    """Return (labels of the name at a place, the place behind it). A pointer leads to an earlier place."""
    labels: list[str] = []
    while size := packet[place]:
        if size >= 0xC0:  # noqa: PLR2004  a pointer, RFC 1035 section 4.1.4
            target = struct.unpack_from("!H", packet, place)[0] & 0x3FFF
            if target >= place:
                raise IndexError(f"a pointer from {place} to {target}")
            return [*labels, *_name(packet, target)[0]], place + 2
        labels.append(packet[place + 1 : place + 1 + size].decode())
        place += 1 + size
    return labels, place + 1


if __name__ == "__main__":
    print(json.dumps(ask(on) if (on := cables()) else []))
