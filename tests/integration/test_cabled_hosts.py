"""Sparks that are network namespaces, cabled by veth pairs and a bridge: lldpd names a wrong cable, and the rate of
each link is measured on all of them at once. Needs root and iproute2; what asks lldpd skips without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_link_rate, spark_lldp

from fakes.network_namespaces import Host, cable, hosts
from loopback import held_port
from vllm_spark.core.types import FabricFacts
from vllm_spark.inventory import cabling, link_rate, topology
from vllm_spark.inventory.cabling import End
from waiting import until

LLDPD = shutil.which("lldpd")
SPARKS = ["spark1", "spark2", "spark3"]

# Measures the rails of argv, which is JSON, and prints the results. The module does the same on a Spark.
MEASURE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import spark_link_rate
print(json.dumps(spark_link_rate.measure(json.loads(sys.argv[2]), port=int(sys.argv[3]), seconds=0.2, wait_s=30)))
"""


@pytest.fixture
def triangle() -> Iterator[Any]:
    """A function that cables three Sparks and returns them by name."""
    with ExitStack() as stack:

        def make(cables: Sequence[tuple[str, str]]) -> dict[str, Host]:
            made = dict(zip(SPARKS, stack.enter_context(hosts(*SPARKS)), strict=True))
            numbered = cabling.addresses(cabling.links("triangle", 3))
            for one, other in cables:
                ends = [End(int(each[0]) - 1, int(each[2])) for each in (one, other)]
                for twin in (0, 1):
                    cable({made[end.host]: _end(end, twin, numbered) for end in ends})
            return made

        yield make


def _end(end: End, twin: int, numbered: Mapping[str, Mapping[str, str]]) -> tuple[str, list[str]]:
    netdev = end.netdevs[twin]
    return netdev, [numbered[end.host][netdev]]


def facts(host: Host, heard: str) -> FabricFacts:
    """Return the facts of one host. A namespace has no HCA, so those of its netdevs are made."""
    netdevs = [
        {
            "name": entry["ifname"],
            "addresses": [
                {"address": one["local"], "prefix": one["prefixlen"]}
                for one in entry["addr_info"]
                if one["family"] == "inet"
            ],
            "mtu": entry["mtu"],
            "carrier": "LOWER_UP" in entry["flags"],
            "wireless": False,
            "mac": entry["address"],
        }
        for entry in json.loads(host.run("ip", "-json", "addr"))
        if entry["ifname"] != "lo"
    ]
    hcas = [
        {
            "name": entry["name"].replace("en", "roce", 1).partition("np")[0],
            "netdev": entry["name"],
            "state": "ACTIVE",
            "rate": "200 Gb/sec (4X HDR)",
            "pci": None,
            "pci_width": None,
            "pci_max_width": None,
            "pci_speed": "",
            "pci_max_speed": "",
            "gids": [],
            "gids_from": "",
        }
        for entry in netdevs
    ]
    return {
        "netdevs": netdevs,
        "hcas": hcas,
        "devices": ["/dev/infiniband/uverbs0"],
        "ib_core": True,
        "default_route": None,
        "neighbours": spark_lldp.neighbours(heard),
    }


def test_each_link_of_a_triangle_is_measured_at_the_same_time(triangle: Any) -> None:
    made = triangle([("1.0", "2.1"), ("2.0", "3.1"), ("3.0", "1.1")])
    known = {name: facts(host, "") for name, host in made.items()}
    rails = {name: link_rate.of_facts(name, known) for name in SPARKS}
    utils = str(Path(spark_link_rate.__file__).parent)
    port = held_port()
    running = [
        subprocess.Popen(
            host.argv(sys.executable, "-c", MEASURE, utils, json.dumps(rails[name]), str(port)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, host in made.items()
    ]
    outputs = [json.loads(process.communicate(timeout=120)[0]) for process in running]
    judged = [link_rate.judge(name, rails[name], found, 0.0) for name, found in zip(SPARKS, outputs, strict=True)]
    assert [refusals for _, refusals, _ in judged] == [[], [], []]
    rates = [rate for _, _, found in judged for rate in found]
    assert len(rates) == 12
    assert all(gbps > 0 for _, _, gbps in rates)
    assert link_rate.slowest(rates).startswith("slowest link, which decides for all ranks: spark")


@contextmanager
def listening(made: Mapping[str, Host]) -> Iterator[dict[str, list[str]]]:
    """Run lldpd on each host, and yield the command that asks it."""
    running = []
    # lldpd's own account reaches its socket by this folder, whose path is short enough for one.
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)  # noqa: S103  the folder of a test, with sockets alone
    try:
        for name, host in made.items():
            argv = host.argv("lldpd", "-d", "-u", f"{folder}/{name}", "-C", "en*", "-I", "en*", "-O", "/dev/null")
            running.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield {name: host.argv("lldpcli", "-u", f"{folder}/{name}") for name, host in made.items()}
    finally:
        shutil.rmtree(folder)
        for process in running:
            process.terminate()
            process.wait()


@pytest.mark.skipif(not LLDPD, reason="lldpd is not installed: apt-get install lldpd")
@pytest.mark.parametrize(
    ("cables", "says"),
    [
        ([("1.0", "2.1"), ("2.0", "3.1"), ("3.0", "1.1")], "✓ accepted spark3 port 0 ↔ spark1 port 1 (LLDP)"),
        ([("1.0", "2.1"), ("2.0", "3.0"), ("3.1", "1.1")], "Fix: on spark3, swap the two cables."),
    ],
    ids=["as planned", "two cables of one Spark have changed places"],
)
def test_lldpd_of_the_distribution_names_the_cables(cables: list[tuple[str, str]], says: str, triangle: Any) -> None:
    made = triangle(cables)
    with listening(made) as ask:

        def said(*words: str) -> dict[str, str]:
            return {
                name: subprocess.run([*command, *words], capture_output=True, text=True, check=False).stdout
                for name, command in ask.items()
            }

        def heard() -> list[int]:
            return [len(spark_lldp.neighbours(text) or ()) for text in said(*spark_lldp.COMMAND[1:]).values()]

        # As the role does: all of them run, each sends a frame, and then they are asked.
        until(lambda: all(said(*spark_lldp.COMMAND[1:]).values()), 60)
        said("update")
        until(lambda: heard() == [4, 4, 4], 20)
        found = said(*spark_lldp.COMMAND[1:])
    known = {name: facts(host, found[name]) for name, host in made.items()}
    try:
        text = "\n".join(topology.judge({"fabric": "triangle", "sparks": SPARKS}, known))
    except topology.RefusedError as error:
        text = str(error)
    assert says in text
