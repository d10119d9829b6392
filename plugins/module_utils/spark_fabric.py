"""The RoCE fabric of a host, read only: netdevs, HCAs, GIDs, devices and routes, from sysfs and two calls of `ip`.

sysfs is read first because every kernel with RDMA has it. `ibdev2netdev` and `show_gids` are scripts of NVIDIA's
packages over the same files: they run only if sysfs does not have the answer.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from typing import TYPE_CHECKING, Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_lldp
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import run

if TYPE_CHECKING:
    from vllm_spark.core.types import AddressFacts, FabricFacts, GidFacts, HcaFacts, NetdevFacts

TIMEOUT_S = 10.0

# Every HCA of a ConnectX-7 has one port; a Spark's two sockets are four HCAs, not two with two ports.
PORT = "ports/1"

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
EMPTY_GID = ":".join(["0000"] * 8)

# The switch of the package dgx-spark-mlnx-hotplug (DGX OS since January 2026). While it exists, its udev handler takes
# a ConnectX-7 without a cable off the PCIe bus (NVIDIA/NV-Kernels#228 and #271).
HOTPLUG = "etc/nvidia/cx7-hotplug-enabled"

# "rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)"; an HCA without a netdev has "(none)" or an empty field.
IBDEV2NETDEV = re.compile(r"^(\S+) port 1 ==> (?:(\S+) )?\((Up|Down)\)", re.MULTILINE)
# DEV PORT INDEX GID [IPv4] VER NETDEV
SHOW_GIDS = re.compile(r"^(\S+)\s+1\s+(\d+)\s+([0-9a-f]{4}(?::[0-9a-f]{4}){7})\s+(?:[\d.]+\s+)?(v[12])\b", re.MULTILINE)
STATES = {"Up": "ACTIVE", "Down": "DOWN"}
GID_TYPES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}  # the kernel's names for the short ones of show_gids


def fabric(root: str = "/") -> FabricFacts:
    """Return the facts that inventory/fabric.py needs. `root` is the folder of a recorded host, in which the
    output of commands is stored as files: `ip-addr.json`, `ip-route.json`, and where used `ibdev2netdev.txt`,
    `show_gids.txt` and `lldp.json`."""
    host = Host(root)
    hcas = hcas_of(host)
    heard = spark_lldp.neighbours(host.command("lldp.json", *spark_lldp.COMMAND)[0])
    return {
        "netdevs": netdevs_of(host),
        "hcas": hcas,
        "devices": [f"/dev/infiniband/{name}" for name in host.names("dev/infiniband")],
        "ib_core": host.exists("sys/module/ib_core"),
        "default_route": default_route(host),
        "hotplug": host.exists(HOTPLUG),
        # Not those of the office: they are nobody's business here.
        "neighbours": heard and [one for one in heard if one["netdev"] in {hca["netdev"] for hca in hcas}],
        "error": "; ".join(host.errors),
    }


class Host:
    """The files and commands of a host, real or recorded. A value that cannot be read is empty, because a port that
    is down has files that answer with EINVAL."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.errors: list[str] = []

    def path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def exists(self, path: str) -> bool:
        return os.path.exists(self.path(path))

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; numbers by their value."""
        try:
            names = os.listdir(self.path(path))
        except OSError:
            return []
        return sorted(names, key=lambda name: (int(name), "") if name.isdigit() else (0, name))

    def text(self, path: str) -> str:
        try:
            with open(self.path(path), encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return the whole number in a file, or None. The kernel reports an unknown value as -1 and the width of a
        lost device as 255."""
        text = self.text(path)
        return int(text) if text.isdigit() else None

    def pci(self, path: str) -> str | None:
        """Return the PCI address behind a `device` link, or None: a virtual netdev does not have one."""
        name = os.path.basename(os.path.realpath(self.path(path)))
        return name if PCI_ADDRESS.fullmatch(name) else None

    def link(self, path: str) -> str:
        """Return the name of what a link leads to, or an empty text."""
        return os.path.basename(os.readlink(self.path(path))) if os.path.islink(self.path(path)) else ""

    def command(self, record: str, *argv: str) -> tuple[str, str]:
        """Return (output of a command, its error). `record` is the file of a recorded host that has the output."""
        if self.root != "/":
            return self.text(record), ""
        result = run(*argv, timeout_s=TIMEOUT_S)
        return result.stdout, result.stderr.strip() if result.status else ""

    def json(self, record: str, *argv: str) -> list[dict[str, Any]]:
        """Return the list that a command of `ip` prints. An error is stored for the operator, not raised."""
        text, error = self.command(record, *argv)
        if error:
            self.errors.append(error)
        entries: list[dict[str, Any]] = json.loads(text) if text.strip() and not error else []
        return entries


def netdevs_of(host: Host) -> list[NetdevFacts]:
    """Return every netdev except the loopback, with its IPv4 addresses."""
    addresses: dict[str, list[AddressFacts]] = {}
    for entry in host.json("ip-addr.json", "ip", "-json", "addr"):
        addresses[entry.get("ifname", "")] = [
            {"address": info["local"], "prefix": info["prefixlen"]}
            for info in entry.get("addr_info", [])
            if info.get("family") == "inet"
        ]
    # bonding_masters is a file among the folders.
    names = [name for name in host.names("sys/class/net") if name != "lo" and host.exists(f"sys/class/net/{name}/mtu")]
    return [netdev(host, name, addresses.get(name, [])) for name in names]


def netdev(host: Host, name: str, addresses: list[AddressFacts]) -> NetdevFacts:
    path = f"sys/class/net/{name}"
    return {
        "name": name,
        "addresses": addresses,
        "mac": host.text(f"{path}/address"),
        "mtu": host.number(f"{path}/mtu"),
        "carrier": host.text(f"{path}/carrier") == "1",
        "wireless": host.exists(f"{path}/wireless") or host.exists(f"{path}/phy80211"),
        "pci": host.pci(f"{path}/device"),
        "master": host.link(f"{path}/master"),
    }


def hcas_of(host: Host) -> list[HcaFacts]:
    """Return the HCAs. Those that sysfs does not have, or not with a netdev, are asked of ibdev2netdev."""
    names = host.names("sys/class/infiniband")
    hcas = [hca(host, name) for name in names]
    if hcas and all(entry["netdev"] for entry in hcas):
        return hcas
    table, _ = host.command("ibdev2netdev.txt", "ibdev2netdev")
    rows = {name: (device, state) for name, device, state in IBDEV2NETDEV.findall(table)}
    hcas = hcas or [hca(host, name) for name in rows]
    for entry in hcas:
        device, state = rows.get(entry["name"], ("", ""))
        entry["netdev"] = entry["netdev"] or device.replace("(none)", "") or None
        entry["state"] = entry["state"] or STATES.get(state, "")
        entry["pci"] = entry["pci"] or host.pci(f"sys/class/net/{entry['netdev']}/device")
    return hcas


def hca(host: Host, name: str) -> HcaFacts:
    """Return one HCA as sysfs describes it; values that sysfs does not have are empty."""
    path = f"sys/class/infiniband/{name}"
    gids, gids_from = gids_of(host, name)
    return {
        "name": name,
        "netdev": netdev_of(host, path),
        "state": host.text(f"{path}/{PORT}/state").partition(": ")[2],
        "rate": host.text(f"{path}/{PORT}/rate"),
        "pci": host.pci(f"{path}/device"),
        "pci_width": host.number(f"{path}/device/current_link_width"),
        "pci_max_width": host.number(f"{path}/device/max_link_width"),
        "pci_speed": host.text(f"{path}/device/current_link_speed"),
        "pci_max_speed": host.text(f"{path}/device/max_link_speed"),
        "gids": gids,
        "gids_from": gids_from,
    }


def netdev_of(host: Host, path: str) -> str | None:
    """Return the netdev on an HCA's port: the device's only one, otherwise that of its first GID."""
    netdevs = host.names(f"{path}/device/net")
    return netdevs[0] if len(netdevs) == 1 else host.text(f"{path}/{PORT}/gid_attrs/ndevs/0") or None


def gids_of(host: Host, name: str) -> tuple[list[GidFacts], str]:
    """Return (the GIDs that are set, their source: sysfs, show_gids or empty)."""
    path = f"sys/class/infiniband/{name}/{PORT}"
    indexes = host.names(f"{path}/gids")
    if indexes:
        table = ((index, host.text(f"{path}/gids/{index}")) for index in indexes)
        set_ = [(index, gid) for index, gid in table if gid and gid != EMPTY_GID]
        return [gid_entry(index, host.text(f"{path}/gid_attrs/types/{index}"), gid) for index, gid in set_], "sysfs"
    output, _ = host.command("show_gids.txt", "show_gids", name)
    rows = [row for row in SHOW_GIDS.findall(output) if row[0] == name]
    gids = [gid_entry(index, GID_TYPES[version], gid) for _, index, gid, version in rows]
    return gids, "show_gids" if gids else ""


def gid_entry(index: str, type_: str, gid: str) -> GidFacts:
    address = ipaddress.IPv6Address(gid)
    return {"index": int(index), "type": type_, "address": str(address.ipv4_mapped or address)}


def default_route(host: Host) -> str | None:
    """Return the netdev of the default route with the lowest metric, or None."""
    routes = host.json("ip-route.json", "ip", "-json", "route")
    defaults = [route for route in routes if route.get("dst") == "default" and route.get("dev")]
    if not defaults:
        return None
    netdev_name: str = min(defaults, key=lambda route: route.get("metric", 0))["dev"]
    return netdev_name
