"""The role on Sparks that are network namespaces, cabled by veth pairs: the package lldpd names a wrong cable, and
the rate of each link is measured on all of them at once. Needs root, iproute2, ping and lldpd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.network_namespaces import Host, cable, hosts
from vllm_spark.core import paths
from vllm_spark.inventory import cabling
from vllm_spark.inventory.cabling import End
from waiting import until

RUN = Path(sys.executable).with_name("ansible-playbook")
SPARKS = ["spark1", "spark2", "spark3"]
TOOLS = ("ip", "ping", "lldpd")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, TOOLS)),
    reason="needs root, iproute2, iputils-ping and lldpd",
)

# The interpreter of a Spark: Python in its namespace, with a /dev that has an RDMA device.
PYTHON = """#!/bin/sh
exec ip netns exec {namespace} sh -c '
mount -t tmpfs none /dev
mkdir /dev/shm /dev/infiniband
touch /dev/infiniband/uverbs0
mknod /dev/null c 1 3
mknod /dev/random c 1 8
mknod /dev/urandom c 1 9
ln -s /proc/self/fd /dev/fd
PATH={folder}/{name}-bin:$PATH exec /usr/bin/python3 "$@"' sh "$@"
"""
IBDEV2NETDEV = """#!/bin/sh
for netdev in /sys/class/net/en*; do
  netdev=${netdev##*/}
  hca=roce${netdev#en}
  echo "${hca%np*} port 1 ==> $netdev (Up)"
done
"""
PLAY = """
- hosts: sparks
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - ansible.builtin.include_role: {name: spark_fabric}
"""


@contextmanager
def cabled(cables: Sequence[tuple[str, str]]) -> Iterator[tuple[Path, dict[str, Host]]]:
    """Cable three Sparks, let lldpd run on each, and yield (the folder of a site, the Sparks by name). They have the
    addresses of a triangle, whatever their cables."""
    numbered = cabling.addresses(cabling.links("triangle", 3))
    # lldpd's own account reaches its socket by this folder, whose path is short enough for one.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    running = []
    with hosts(*SPARKS) as made:
        named = dict(zip(SPARKS, made, strict=True))
        for one, other in cables:
            ends = [End(int(each[0]) - 1, int(each[2])) for each in (one, other)]
            for twin in (0, 1):
                cable({named[end.host]: (end.netdevs[twin], [numbered[end.host][end.netdevs[twin]]]) for end in ends})
        for name, host in named.items():
            argv = host.argv("lldpd", "-d", "-u", f"{folder}/{name}.lldpd", "-C", "en*", "-I", "en*", "-O", "/dev/null")
            running.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        try:
            _write_site(folder, named)
            yield folder, named
        finally:
            for process in running:
                process.terminate()
                process.wait()
            shutil.rmtree(folder)


def _write_site(folder: Path, named: Mapping[str, Host]) -> None:
    for name, host in named.items():
        programs = {
            f"{name}-python": PYTHON.format(namespace=host.name, folder=folder, name=name),
            f"{name}-bin/lldpcli": f'#!/bin/sh\nexec {shutil.which("lldpcli")} -u {folder}/{name}.lldpd "$@"\n',
            f"{name}-bin/ibdev2netdev": IBDEV2NETDEV,
        }
        for path, text in programs.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
            (folder / path).chmod(0o755)
    known = {name: {"ansible_python_interpreter": f"{folder}/{name}-python"} for name in named}
    topology = {"fabric": "triangle", "sparks": list(named)}
    site = {"sparks": {"hosts": known, "vars": {"ansible_connection": "local", "vllm_topology": topology}}}
    (folder / "hosts.yml").write_text(json.dumps(site))
    (folder / "play.yml").write_text(PLAY)


def _exchange_frames(folder: Path, named: Mapping[str, Host]) -> None:
    """Wait until each Spark hears its four twins. As in the role, all run, and then each sends a frame."""

    def said(*words: str) -> list[str]:
        argv = [host.argv("lldpcli", "-u", f"{folder}/{name}.lldpd", *words) for name, host in named.items()]
        return [subprocess.run(each, capture_output=True, text=True, check=False).stdout for each in argv]

    until(lambda: all(said("-f", "json", "show", "neighbors")), 60)
    said("update")
    until(lambda: [text.count('"port": {') for text in said("-f", "json", "show", "neighbors")] == [4, 4, 4], 20)


def _played(folder: Path, *words: str) -> str:
    """Return what the role prints."""
    argv = [str(RUN), "-i", str(folder / "hosts.yml"), str(folder / "play.yml"), *words]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(paths.ROOT / "ansible.cfg"), "NO_COLOR": "1"}
    done = subprocess.run(
        argv, cwd=paths.ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    return done.stdout + done.stderr


def test_links_that_are_right_are_accepted_pinged_and_measured_at_the_same_time() -> None:
    with cabled([("1.0", "2.1"), ("2.0", "3.1"), ("3.0", "1.1")]) as (folder, named):
        _exchange_frames(folder, named)
        said = _played(folder, "-e", "vllm_fabric_least_gbps=0.001")
    assert "spark1  ✓ accepted spark3 port 0 ↔ spark1 port 1 (LLDP): 192.168.181.0/24" in said, said
    # Each Spark has two links with two subnets, each in both directions.
    assert said.count("3 of 3 with 1472 bytes undivided") == said.count(" Gb/s\n") == 12, said
    assert "note: spark2: enp1s0f0np0 has MTU 1500 and enP2p1s0f0np0 has MTU 1500" in said
    assert "spark1  slowest link, which decides for all ranks: spark" in said
    assert "failed=1" not in said


def test_a_cable_in_the_wrong_port_is_named_by_the_distributions_lldpd() -> None:
    with cabled([("1.0", "2.1"), ("2.0", "3.0"), ("3.1", "1.1")]) as (folder, named):
        _exchange_frames(folder, named)
        said = _played(folder)
    assert "Fix: on spark3, swap the two cables." in said, said
    assert "accepted" not in said
