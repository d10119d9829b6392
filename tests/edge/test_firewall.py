"""The firewall table with the real nft: a Spark, a machine of its network, and the other rank of its pair.

Every listener of the Spark is on all addresses, as the ports of Ray and torch are.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fakes.cases import CASES, hosts_of, resolved
from fakes.network_namespaces import Host, cable, hosts
from project_files import DATA
from vllm_spark.deploy import firewall, launch, ranks
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec
from vllm_spark.node import host_layout
from waiting import until

NFT = shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin:/bin") or "nft"
SSH, API, SUPERVISOR, RAY, RAY_CLIENT, WEIGHTS, TORCH, OWNERS = 22, 8000, 25000, 25001, 10001, 25091, 40000, 3000
PORTS = (SSH, API, SUPERVISOR, RAY, RAY_CLIENT, WEIGHTS, TORCH, OWNERS)
OF_THE_PAIR = {SUPERVISOR, RAY, RAY_CLIENT, TORCH}

# The Spark, a machine of its network, the other Spark. The machine also has an address that is not private, and knows a
# way to the Spark's address on the fabric.
SPARK, SPARK6, NEAR, NEAR6, FAR, FAR6 = "10.9.0.1", "fd09::1", "10.9.0.2", "fd09::2", "203.0.113.2", "2001:db8::2"
FABRIC, PEER = "10.10.0.1", "10.10.0.2"


@dataclass(frozen=True)
class Network:
    spark: Host
    near: Host
    peer: Host
    spec: Spec
    file: Path

    def load(self, text: str) -> None:
        self.file.write_text(text)
        self.spark.run(NFT, "--check", "--file", str(self.file))
        self.spark.run(NFT, "--file", str(self.file))

    def start_pair(self) -> None:
        """Do what the launch of the pair does to the table."""
        script = launch.script(self.spec).replace(host_layout.FIREWALL, str(self.file))
        lines = script.splitlines(keepends=True)
        begin = next(number for number, line in enumerate(lines) if line.startswith("nft --file"))
        end = lines.index("RULES\n")
        assert any(PEER in line for line in lines[begin:end])
        self.spark.run("sh", "-euc", "".join(lines[begin : end + 1]))


@pytest.fixture
def network(tmp_path: Path, facts: dict[str, Any]) -> Iterator[Network]:
    case = json.loads(next(file for file in CASES if file.stem == "argv-closed-pair-ray-head").read_text())
    specs = resolved(case, "spark1")
    spec = ranks.join(specs, hosts_of(case, specs, facts, tmp_path))["spark1"]
    assert spec.group
    own, other = spec.group.members
    members = (own, replace(other, address=PEER))
    spec = replace(spec, group=replace(spec.group, netdev="fabric0", members=members))
    with hosts("spark", "near", "peer") as (spark, near, peer):
        cable({spark: ("lan0", [f"{SPARK}/24", f"{SPARK6}/64"]), near: ("lan0", [f"{NEAR}/24", f"{NEAR6}/64"])})
        cable({spark: ("fabric0", [f"{FABRIC}/24"]), peer: ("fabric0", [f"{PEER}/24"])})
        for address in (f"{FAR}/32", f"{FAR6}/128"):
            near.run("ip", "address", "add", address, "dev", "lan0", *(["nodad"] if ":" in address else []))
        spark.run("ip", "route", "add", FAR, "via", NEAR)
        spark.run("ip", "route", "add", FAR6, "via", NEAR6)
        near.run("ip", "route", "add", FABRIC, "via", SPARK)
        with spark.serving(PORTS):
            yield Network(spark, near, peer, spec, tmp_path / "firewall.nft")


def without(closed: set[int]) -> list[int]:
    return [port for port in PORTS if port not in closed]


def test_without_the_table_everything_answers(network: Network) -> None:
    for source, address in ((NEAR, SPARK), (NEAR6, SPARK6), (FAR, SPARK), (FAR6, SPARK6), (NEAR, FABRIC)):
        assert network.near.reaches(source, address, PORTS) == list(PORTS)


def test_clients_reach_the_edge_from_their_networks_alone(network: Network) -> None:
    network.load(firewall.table(HostIntent.of_rank(network.spec), [SSH]))
    assert network.near.reaches(NEAR, SPARK, PORTS) == list(PORTS)
    assert network.near.reaches(NEAR6, SPARK6, PORTS) == list(PORTS)
    assert network.near.reaches(FAR, SPARK, PORTS) == without({API})
    assert network.near.reaches(FAR6, SPARK6, PORTS) == without({API})
    assert network.spark.reaches(SPARK, SPARK, PORTS) == list(PORTS)


def test_the_ports_of_a_pair_that_runs_are_for_the_other_rank(network: Network) -> None:
    network.load(firewall.table(HostIntent.of_rank(network.spec), [SSH]))
    network.start_pair()
    assert network.peer.reaches(PEER, FABRIC, PORTS) == list(PORTS)
    assert network.near.reaches(NEAR, SPARK, PORTS) == without(OF_THE_PAIR)
    assert network.near.reaches(NEAR6, SPARK6, PORTS) == without(OF_THE_PAIR)
    # The address of the fabric by a way around, and the address of the other rank on the wrong netdev.
    assert network.near.reaches(NEAR, FABRIC, PORTS) == without({*OF_THE_PAIR, WEIGHTS})
    network.near.run("ip", "address", "add", f"{PEER}/32", "dev", "lan0")
    network.spark.run("sh", "-c", "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done")
    assert network.near.reaches(PEER, FABRIC, [SUPERVISOR, RAY, TORCH]) == []
    assert network.spark.reaches(SPARK, SPARK, PORTS) == list(PORTS)


def test_a_second_start_and_a_deploy_keep_what_a_launch_has_added(network: Network) -> None:
    text = firewall.table(HostIntent.of_rank(network.spec), [SSH])
    network.load(text)
    network.start_pair()
    network.start_pair()
    network.load(text)
    assert network.near.reaches(NEAR, SPARK, PORTS) == without(OF_THE_PAIR)
    for name in ("pair_ports", "peers"):
        network.spark.run(NFT, "flush", "set", *host_layout.FIREWALL_TABLE.split(), name)
    assert network.near.reaches(NEAR, SPARK, PORTS) == list(PORTS)


def test_a_launch_without_the_table_starts_nothing(network: Network) -> None:
    with pytest.raises(AssertionError, match="No such file"):
        network.start_pair()


def test_a_port_that_docker_publishes_is_closed_as_well(network: Network) -> None:
    network.load(firewall.table(HostIntent.of_rank(network.spec), [SSH]))
    network.start_pair()
    rule = "tcp dport 25050 redirect to :3000"
    published = f"table ip nat {{ chain prerouting {{ type nat hook prerouting priority dstnat; {rule}; }}; }}"
    network.spark.run(NFT, "--file", "-", stdin=published)
    assert network.near.reaches(NEAR, SPARK, [25050]) == []
    assert network.peer.reaches(PEER, FABRIC, [25050]) == [25050]


def test_ssh_on_a_port_of_the_pair_stays_open(network: Network) -> None:
    network.load(firewall.table(HostIntent.of_rank(network.spec), [TORCH]))
    network.start_pair()
    assert network.near.reaches(NEAR, SPARK, PORTS) == without(OF_THE_PAIR - {TORCH})


def test_a_connection_stays_when_the_table_comes(network: Network) -> None:
    """A deploy over ssh must not lose its own connection, nor a pair of an older toolkit its own."""
    echo = f"import socket; one, _ = socket.create_server(('', {TORCH + 1})).accept(); one.sendall(one.recv(9))"
    talk = (
        "import socket, sys, time; sys.stdin.readline(); "
        f"one = socket.create_connection(('{SPARK}', {TORCH + 1})); print('connected', flush=True); "
        "sys.stdin.readline(); one.sendall(b'still'); print(one.recv(9).decode())"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    server = subprocess.Popen(network.spark.argv("python3", "-c", echo))
    client = subprocess.Popen(network.near.argv("python3", "-c", talk), **pipes)
    try:
        until(lambda: f":{TORCH + 1} " in network.spark.run("ss", "-Hltn"))
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write("\n")
        client.stdin.flush()
        assert client.stdout.readline() == "connected\n"
        network.load(firewall.table(HostIntent.of_rank(network.spec), [SSH]))
        network.start_pair()
        assert network.near.reaches(NEAR, SPARK, [TORCH]) == []
        said, _ = client.communicate("\n", timeout=10)
    finally:
        for process in (server, client):
            process.kill()
            process.wait()
    assert said == "still\n"


def goldens() -> Sequence[Path]:
    return sorted((DATA / "firewall").glob("*.nft"))


@pytest.mark.parametrize("file", goldens(), ids=lambda file: file.stem)
def test_nft_takes_every_reviewed_table_twice(file: Path, network: Network) -> None:
    for _ in range(2):
        network.load(file.read_text())
    assert network.near.reaches(NEAR, SPARK, [SSH]) == [SSH]
