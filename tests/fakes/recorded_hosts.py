"""Recorded hosts as trees of sysfs that the collector reads: tests/data/fabric.

A case is a folder: spark1.json and spark2.json describe the hosts (a missing field has the value of a healthy Spark),
expect.json has the expectation of test_fabric.py.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_fabric

CASES = sorted((Path(__file__).parents[1] / "data" / "fabric").iterdir())
HOSTS = ("spark1", "spark2")
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
GID_SLOTS = 8
Files = dict[str, str]


def load(case: Path, host: str) -> dict[str, Any]:
    return json.loads((case / f"{host}.json").read_text())


def recorded(case: str, host: str = "spark1") -> dict[str, Any]:
    """Return the description of one host of a case, for a test to change."""
    return load(next(folder for folder in CASES if folder.name == case), host)


def record(root: Path, host: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of a described host below `root` as its kernel shows them. Returns the collector's facts."""
    devices = {entry["netdev"]: entry for entry in host.get("hcas", {}).values() if "pci" in entry}
    devices |= host.get("netdevs", {})
    for name, entry in devices.items():
        write(root / "sys/class/net" / name, netdev_files(entry))
        link_device(root, f"sys/class/net/{name}", entry)
        if "master" in entry:
            (root / "sys/class/net" / name / "master").symlink_to(f"../{entry['master']}")
    for name, entry in host.get("hcas", {}).items():
        write(root / "sys/class/infiniband" / name / "ports/1", port_files(entry))
        link_device(root, f"sys/class/infiniband/{name}", entry)
        write(root / f"sys/class/infiniband/{name}/device", lane_files(entry))
    write(root, dict(host_files(host, devices)))
    # The facts reach the controller as JSON.
    return json.loads(json.dumps(spark_fabric.fabric(str(root))))


def write(folder: Path, files: Files) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def link_device(root: Path, path: str, entry: Mapping[str, Any]) -> None:
    """Write `device`, a link into the tree of PCI devices, which also has the netdev. A virtual netdev has none."""
    if "pci" in entry:
        target = root / "sys/devices" / entry["pci"]
        (target / "net" / entry.get("netdev", "")).mkdir(parents=True, exist_ok=True)
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "device").symlink_to(target)


def netdev_files(entry: Mapping[str, Any]) -> Files:
    up = entry.get("up", True)
    files = {"mtu": f"{entry.get('mtu', 1500)}\n", "carrier": f"{up:d}\n"}
    return files | ({"wireless/status": "0x0\n"} if entry.get("wireless") else {})


def port_files(entry: Mapping[str, Any]) -> Files:
    up = entry.get("up", True)
    files = {
        "state": "4: ACTIVE\n" if up else "1: DOWN\n",
        "rate": f"{entry.get('rate', '200 Gb/sec (4X HDR)' if up else '40 Gb/sec (4X QDR)')}\n",
    }
    table = entry.get("gids", gids(entry))
    if table is None:  # a kernel without the table in sysfs
        return files
    for index in map(str, range(GID_SLOTS)):
        type_, address = table.get(index, ("", ""))
        files[f"gids/{index}"] = f"{gid(address) if address else EMPTY_GID}\n"
        if type_:  # reading the type of an empty slot is an error
            files[f"gid_attrs/types/{index}"] = f"{type_}\n"
            files[f"gid_attrs/ndevs/{index}"] = f"{entry['netdev']}\n"
    return files


def gids(entry: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the table that the kernel fills: the link-local address, then the IPv4 one, each as v1 and v2."""
    table = {"0": ("IB/RoCE v1", "fe80::4ebb:47ff:fe00:1"), "1": ("RoCE v2", "fe80::4ebb:47ff:fe00:1")}
    if "address" in entry:
        first, ip = entry.get("first_gid", 2), entry["address"].partition("/")[0]
        table |= {str(first): ("IB/RoCE v1", ip), str(first + 1): ("RoCE v2", ip)}
    return table


def gid(address: str) -> str:
    mapped = address if ":" in address else f"::ffff:{address}"
    return ipaddress.IPv6Address(mapped).exploded


def lane_files(entry: Mapping[str, Any]) -> Files:
    if "pci" not in entry:
        return {}
    return {
        "current_link_width": f"{entry.get('width', 4)}\n",
        "max_link_width": f"{entry.get('max_width', 4)}\n",
        "current_link_speed": f"{entry.get('speed', '32.0 GT/s PCIe')}\n",
        "max_link_speed": "32.0 GT/s PCIe\n",
    }


def host_files(host: Mapping[str, Any], devices: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the outputs of commands, and the files that belong to the host and not to a device."""
    yield "ip-addr.json", json.dumps([{"ifname": name, "addr_info": addresses(e)} for name, e in devices.items()])
    route = {"dst": "default", "gateway": "192.168.1.1", "dev": host["default_route"], "metric": 100}
    yield "ip-route.json", json.dumps([route] if host["default_route"] else [])
    for name in host.get("devices", ["rdma_cm", "uverbs0", "uverbs1", "uverbs2", "uverbs3"]):
        yield f"dev/infiniband/{name}", ""
    if host.get("ib_core", True):
        yield "sys/module/ib_core/refcnt", "5\n"
    if host.get("hotplug"):
        yield "etc/nvidia/cx7-hotplug-enabled", ""
    for command in ("ibdev2netdev", "show_gids"):
        if command in host:
            yield f"{command}.txt", host[command]


def addresses(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = [{"family": "inet6", "local": "fe80::1", "prefixlen": 64}]
    if "address" in entry:
        ip, _, prefix = entry["address"].partition("/")
        entries.append({"family": "inet", "local": ip, "prefixlen": int(prefix)})
    return entries
