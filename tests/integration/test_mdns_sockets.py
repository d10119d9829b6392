"""The question for Sparks, by the group of mDNS on the loopback device. A responder answers with a packet of Avahi."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from fakes import mdns_turn
from project_files import DATA
from vllm_spark.core import strict_yaml
from vllm_spark.node import mdns

Address = tuple[str, int]

AVAHI = bytes.fromhex("".join(strict_yaml.load((DATA / "mdns.yml").read_text())[0]["packet"].split()))


@pytest.fixture
def responder() -> Iterator[list[Address]]:
    """Answer on the loopback device, and yield who asked, for each question."""
    group = socket.inet_aton(mdns.GROUPS[socket.AF_INET]) + struct.pack("=4xi", socket.if_nametoindex("lo"))
    heard: list[Address] = []
    with mdns_turn.held(alone=True), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as answering:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            answering.setsockopt(socket.SOL_SOCKET, option, 1)
        answering.bind(("", mdns.PORT))
        for option in (socket.IP_ADD_MEMBERSHIP, socket.IP_MULTICAST_IF):
            answering.setsockopt(socket.IPPROTO_IP, option, group)

        def serve() -> None:
            while (received := answering.recvfrom(mdns.PACKET))[0] != b"end":
                if received[0] == mdns.QUESTION:
                    heard.append(received[1])
                    answering.sendto(AVAHI, (mdns.GROUPS[socket.AF_INET], mdns.PORT))

        thread = threading.Thread(target=serve)
        thread.start()
        yield heard
        answering.sendto(b"end", (mdns.GROUPS[socket.AF_INET], mdns.PORT))
        thread.join()


def test_a_spark_answers(responder: list[Address]) -> None:
    found = mdns.ask({"lo"}, wait_s=0.5)
    assert ("spark-1a2b.local", "lo") in [(answer.name, answer.netdev) for answer in found]
    # A packet may be lost, so the question comes twice.
    assert mdns.ROUNDS in Counter(responder).values()


def test_a_netdev_without_an_answer_has_none(responder: list[Address]) -> None:
    assert mdns.ask({"no-such-netdev"}, wait_s=0.1) == []
    assert responder == []
