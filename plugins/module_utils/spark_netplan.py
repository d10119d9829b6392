"""The netplan configuration of a host, read only: which files configure which netdevs, and which netdev carries this
connection."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Collection, Mapping
from typing import Any, TypedDict

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import must, read_text
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_lock import process

try:
    import yaml
except ImportError:  # netplan depends on PyYAML, so a host with netplan has it
    HAS_YAML = False
else:
    HAS_YAML = True

FOLDERS = ("/etc/netplan", "/run/netplan", "/usr/lib/netplan", "/lib/netplan")


class Hardware(TypedDict):
    """MAC address and driver of a netdev."""

    mac: str
    driver: str


class Configured(TypedDict):
    """The netdevs that a netplan file configures, its sections beside `ethernets`, and the UUIDs of NetworkManager's
    profiles in it: of all, and of those that name no netdev."""

    netdevs: list[str]
    more: list[str]
    profiles: list[str]
    unbound: list[str]
    error: str


def ip_json(*arguments: str) -> list[dict[str, Any]]:
    """Return the list that `ip -json` prints. Raises CommandError if it fails."""
    entries: list[dict[str, Any]] = json.loads(must("ip", "-json", *arguments))
    return entries


def read_netplan(trial: Collection[str] = ()) -> dict[str, Any]:
    """Return the facts that inventory/netplan.py needs beside those of the netdevs. `trial` are the names
    of files in /run/netplan that a restart of the host removes, and that do not count."""
    present = {name: hardware(name) for name in os.listdir("/sys/class/net")}
    reached, files = set(), []
    for folder in FOLDERS:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            path = os.path.join(folder, name)
            if folder == "/run/netplan" and name in trial:
                continue
            # /lib is /usr/lib, and a symlink may show a file twice. netplan reads only *.yaml.
            if name.endswith(".yaml") and os.path.realpath(path) not in reached:
                reached.add(os.path.realpath(path))
                files.append({"path": path, **configured(path, present)})
    return {"netplan": shutil.which("netplan") or "", "files": files, "reached_by": reached_by()}


def hardware(name: str) -> Hardware:
    driver = os.path.realpath(f"/sys/class/net/{name}/device/driver")
    mac = read_text(f"/sys/class/net/{name}/address") or ""
    return {"mac": mac.strip(), "driver": os.path.basename(driver)}


def configured(path: str, present: Mapping[str, Hardware]) -> Configured:
    """Return what a netplan file configures. Its text stays on the host: it may contain the password of a WiFi."""
    none: Configured = {"netdevs": [], "more": [], "profiles": [], "unbound": [], "error": ""}
    if not HAS_YAML:
        return {**none, "error": "PyYAML is missing, so it cannot be read"}
    try:
        document = yaml.safe_load(read_text(path) or "")
        netdevs, more = definitions(document, present)
        profiles = networkmanager(document)
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        return {**none, "error": f"not a netplan file: {type(error).__name__}"}
    unbound = [uuid for uuid, names_one in profiles.items() if not names_one]
    return {**none, "netdevs": netdevs, "more": more, "profiles": list(profiles), "unbound": unbound}


def networkmanager(document: Any) -> dict[str, bool]:
    """Return the UUID of each Ethernet profile that NetworkManager has written, and whether it names a netdev."""
    network = (document or {}).get("network") or {}
    entries = (network.get("ethernets") or {}).items()
    return {
        str(definition["networkmanager"].get("uuid", name.removeprefix("NM-"))): not is_unbound(definition)
        for name, definition in entries
        if (definition or {}).get("networkmanager")
    }


def is_unbound(definition: Mapping[str, Any]) -> bool:
    """Return True for a profile of NetworkManager without a netdev, which it writes with an empty match. It is active
    on one netdev at a time, and netplan's file of another netdev does not change it."""
    return bool(definition.get("networkmanager")) and definition.get("match") == {}


def definitions(document: Any, present: Mapping[str, Hardware]) -> tuple[list[str], list[str]]:
    """Return (the netdevs that a netplan document configures, its sections beside ethernets). Raises AttributeError or
    TypeError if it is not a netplan document."""
    network = (document or {}).get("network") or {}
    ethernets = network.get("ethernets") or {}
    by_entry = {name: matching(name, definition or {}, present) for name, definition in ethernets.items()}
    netdevs: set[str] = set().union(*by_entry.values())
    # Without netdevs of its own a renderer is no configuration: the host's default takes its place.
    more = sorted(section for section in network if section not in ("version", "ethernets", "renderer"))
    for section in more:
        devices = network[section] if isinstance(network[section], dict) else {}
        for definition in devices.values():
            # A bond, a bridge or a VLAN on top of a netdev configures it too.
            below = [*((definition or {}).get("interfaces") or []), (definition or {}).get("link")]
            for name in filter(None, below):
                netdevs |= by_entry.get(name, {name})
    return sorted(netdevs), more


def matching(name: str, definition: Mapping[str, Any], present: Mapping[str, Hardware]) -> set[str]:
    """Return the netdevs of one entry: without `match` its name, otherwise every netdev that meets all of it."""
    match = definition.get("match")
    if match is None:
        return {name}
    if is_unbound(definition):
        return set()
    drivers = match.get("driver", "*")
    netdevs = {
        netdev
        for netdev, own in present.items()
        if fnmatch.fnmatch(netdev, match.get("name", "*"))
        and own["mac"].lower() == match.get("macaddress", own["mac"]).lower()
        and any(fnmatch.fnmatch(own["driver"], each) for each in ([drivers] if isinstance(drivers, str) else drivers))
    }
    return netdevs | ({definition["set-name"]} if "set-name" in definition else set())


def reached_by() -> str:
    """Return the netdev with the address of the ssh session. sudo drops the variable; the shell above it has it."""
    pid = os.getpid()
    while pid > 1:
        for entry in (read_text(f"/proc/{pid}/environ") or "").split("\0"):
            if entry.startswith("SSH_CONNECTION="):
                return netdev_of(entry.split()[2].partition("%")[0])
        pid = process(pid).parent
    return ""


def netdev_of(address: str) -> str:
    names: list[str] = [
        link["ifname"] for link in ip_json("addr") if any(a.get("local") == address for a in link.get("addr_info", []))
    ]
    return names[0] if names else ""
