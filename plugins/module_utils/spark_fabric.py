"""The RoCE fabric of a box, read only: netdevs, HCAs, GIDs, devices and routes, from sysfs and two calls of `ip`.

sysfs is asked first because every kernel with RDMA has it. `ibdev2netdev` and `show_gids` are scripts of NVIDIA's
packages over the same files: they are run only where sysfs does not have the answer.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import subprocess

TIMEOUT_S = 10

# Every HCA of a ConnectX-7 has one port; a Spark's two sockets are four HCAs, not two with two ports.
PORT = "ports/1"

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
EMPTY_GID = ":".join(["0000"] * 8)

# "rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)"; an HCA without a netdev has "(none)" or nothing there.
IBDEV2NETDEV = re.compile(r"^(\S+) port 1 ==> (?:(\S+) )?\((Up|Down)\)", re.MULTILINE)
# DEV PORT INDEX GID [IPv4] VER NETDEV
SHOW_GIDS = re.compile(r"^(\S+)\s+1\s+(\d+)\s+([0-9a-f]{4}(?::[0-9a-f]{4}){7})\s+(?:[\d.]+\s+)?(v[12])\b", re.MULTILINE)
STATES = {"Up": "ACTIVE", "Down": "DOWN"}
GID_TYPES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}  # the kernel's words for show_gids' short ones


def fabric(root="/"):
    """Return the facts that network/fabric.py needs. `root` is the folder of a recorded host, in which the
    output of commands is stored as files: `ip-addr.json`, `ip-route.json`, and where used `ibdev2netdev.txt` and
    `show_gids.txt`."""
    box = Box(root)
    hcas, source = hcas_of(box)
    return {
        "netdevs": netdevs_of(box),
        "hcas": hcas,
        "source": source,
        "devices": [f"/dev/infiniband/{name}" for name in box.names("dev/infiniband")],
        "ib_core": box.exists("sys/module/ib_core"),
        "memlock_bytes": memlock(box),
        "default_route": default_route(box),
        "error": "; ".join(box.errors),
    }


class Box:
    """The files and commands of a box, real or recorded. What cannot be read is empty, as a port that is down has
    files that answer with EINVAL."""

    def __init__(self, root):
        self.root = root
        self.errors = []

    def path(self, path):
        return os.path.join(self.root, path)

    def exists(self, path):
        return os.path.exists(self.path(path))

    def names(self, path):
        """What a folder holds, sorted; numbers by their value."""
        try:
            found = os.listdir(self.path(path))
        except OSError:
            return []
        return sorted(found, key=lambda name: (int(name), "") if name.isdigit() else (0, name))

    def text(self, path):
        try:
            with open(self.path(path), encoding="ascii", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return ""

    def number(self, path):
        """A whole number of a file, or None. -1 is the kernel's word for an unknown speed, 255 for a lost device."""
        text = self.text(path)
        return int(text) if text.isdigit() else None

    def pci(self, path):
        """The PCI address behind a `device` link, or None: a virtual netdev has none."""
        name = os.path.basename(os.path.realpath(self.path(path)))
        return name if PCI_ADDRESS.fullmatch(name) else None

    def said(self, record, *words):
        """(output of a command, what went wrong)."""
        if self.root != "/":
            return self.text(record), ""
        try:
            # S603: the words are constants, and sysfs's name of an HCA.
            done = subprocess.run(  # noqa: S603
                words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except FileNotFoundError:
            return "", f"{words[0]}: not found"
        except subprocess.TimeoutExpired:
            return "", f"{words[0]} did not answer within {TIMEOUT_S} s"
        return done.stdout, done.stderr.strip() if done.returncode else ""

    def json(self, record, *words):
        """The list that a command of `ip` prints; a failure is kept for the operator, not raised."""
        text, error = self.said(record, *words)
        if error:
            self.errors.append(error)
        return json.loads(text) if text.strip() and not error else []


def netdevs_of(box):
    """Every netdev but the loopback, with its IPv4 addresses."""
    addresses = {}
    for entry in box.json("ip-addr.json", "ip", "-json", "addr"):
        addresses[entry.get("ifname")] = [
            {"address": info["local"], "prefix": info["prefixlen"]}
            for info in entry.get("addr_info", [])
            if info.get("family") == "inet"
        ]
    # bonding_masters is a file among the folders.
    names = [name for name in box.names("sys/class/net") if name != "lo" and box.exists(f"sys/class/net/{name}/mtu")]
    return [netdev(box, name, addresses.get(name, [])) for name in names]


def netdev(box, name, addresses):
    path = f"sys/class/net/{name}"
    return {
        "name": name,
        "addresses": addresses,
        "mtu": box.number(f"{path}/mtu"),
        "speed_mbps": box.number(f"{path}/speed"),
        "carrier": box.text(f"{path}/carrier") == "1",
        "wireless": box.exists(f"{path}/wireless") or box.exists(f"{path}/phy80211"),
        "pci": box.pci(f"{path}/device"),
    }


def hcas_of(box):
    """(the HCAs, which of sysfs and ibdev2netdev named them)."""
    names = box.names("sys/class/infiniband")
    found = [hca(box, name) for name in names]
    if found and all(entry["netdev"] for entry in found):
        return found, "sysfs"
    told, _ = box.said("ibdev2netdev.txt", "ibdev2netdev")
    rows = {name: (device, state) for name, device, state in IBDEV2NETDEV.findall(told)}
    found = found or [hca(box, name) for name in rows]
    for entry in found:
        device, state = rows.get(entry["name"], ("", ""))
        entry["netdev"] = entry["netdev"] or device.replace("(none)", "") or None
        entry["state"] = entry["state"] or STATES.get(state, "")
        entry["pci"] = entry["pci"] or box.pci(f"sys/class/net/{entry['netdev']}/device")
    return found, "ibdev2netdev" if found and not names else "sysfs"


def hca(box, name):
    """One HCA as sysfs shows it; blank where sysfs does not know it."""
    path = f"sys/class/infiniband/{name}"
    gids, gids_from = gids_of(box, name)
    return {
        "name": name,
        "netdev": netdev_of(box, path),
        "state": box.text(f"{path}/{PORT}/state").partition(": ")[2],
        "link_layer": box.text(f"{path}/{PORT}/link_layer"),
        "rate": box.text(f"{path}/{PORT}/rate"),
        "pci": box.pci(f"{path}/device"),
        "pci_width": box.number(f"{path}/device/current_link_width"),
        "pci_max_width": box.number(f"{path}/device/max_link_width"),
        "pci_speed": box.text(f"{path}/device/current_link_speed"),
        "pci_max_speed": box.text(f"{path}/device/max_link_speed"),
        "gids": gids,
        "gids_from": gids_from,
    }


def netdev_of(box, path):
    """The netdev on an HCA's port: the device's only one, or else that of its first GID."""
    beside = box.names(f"{path}/device/net")
    return beside[0] if len(beside) == 1 else box.text(f"{path}/{PORT}/gid_attrs/ndevs/0") or None


def gids_of(box, name):
    """(the GIDs that are set, who said so: sysfs, show_gids or nobody)."""
    path = f"sys/class/infiniband/{name}/{PORT}"
    indexes = box.names(f"{path}/gids")
    if indexes:
        table = ((index, box.text(f"{path}/gids/{index}")) for index in indexes)
        set_ = [(index, gid) for index, gid in table if gid and gid != EMPTY_GID]
        return [gid_entry(index, box.text(f"{path}/gid_attrs/types/{index}"), gid) for index, gid in set_], "sysfs"
    told, _ = box.said("show_gids.txt", "show_gids", name)
    rows = [row for row in SHOW_GIDS.findall(told) if row[0] == name]
    gids = [gid_entry(index, GID_TYPES[version], gid) for _, index, gid, version in rows]
    return gids, "show_gids" if gids else ""


def gid_entry(index, type_, gid):
    address = ipaddress.IPv6Address(gid)
    return {"index": int(index), "type": type_, "address": str(address.ipv4_mapped or address)}


def memlock(box):
    """The soft limit in bytes that a process of root has here, or None: unlimited."""
    limit = re.search(r"^Max locked memory\s+(\S+)", box.text("proc/self/limits"), re.MULTILINE)
    return int(limit[1]) if limit and limit[1].isdigit() else None


def default_route(box):
    """The netdev of the default route with the lowest metric, or None."""
    routes = box.json("ip-route.json", "ip", "-json", "route")
    defaults = [route for route in routes if route.get("dst") == "default" and route.get("dev")]
    return min(defaults, key=lambda route: route.get("metric", 0))["dev"] if defaults else None
