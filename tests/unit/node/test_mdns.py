"""The Sparks that packets of mDNS name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from project_files import DATA
from vllm_spark.core import strict_yaml
from vllm_spark.node import mdns

PACKETS = strict_yaml.load((DATA / "mdns.yml").read_text())


@pytest.mark.parametrize("case", PACKETS, ids=[case["id"] for case in PACKETS])
def test_a_packet_names_sparks(case: dict[str, Any]) -> None:
    packet = bytes.fromhex("".join(case["packet"].split()))
    assert sorted(mdns.sparks(packet)) == case["names"]
    # However a packet is cut, it is read without an error.
    for size in range(len(packet)):
        assert mdns.sparks(packet[:size]) <= set(case["names"])


def test_the_cables_of_a_machine_are_the_netdevs_of_its_rdma_devices(tmp_path: Path) -> None:
    for hca, netdev in (("rocep1s0f1", "enp1s0f1np1"), ("roceP2p1s0f1", "enP2p1s0f1np1")):
        (tmp_path / hca / "device" / "net" / netdev).mkdir(parents=True)
    assert mdns.cables(tmp_path) == {"enp1s0f1np1", "enP2p1s0f1np1"}
    assert mdns.cables(tmp_path / "none") == set()
