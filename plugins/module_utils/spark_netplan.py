"""What netplan is told on a box, read only: which files configure which netdevs, and by which netdev we came."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess

try:
    import yaml
except ImportError:  # where netplan is, PyYAML is: it is a dependency of the package
    yaml = None

FOLDERS = ("/etc/netplan", "/run/netplan", "/usr/lib/netplan", "/lib/netplan")


def ip_json(*words):
    # S603, S607: constant words, and `ip` is found as the shell finds it.
    done = subprocess.run(["ip", "-json", *words], capture_output=True, text=True, check=True)  # noqa: S603, S607
    return json.loads(done.stdout)


def read(path, mode="r"):
    """A file's content, or nothing."""
    try:
        with open(path, mode, **({} if "b" in mode else {"encoding": "utf-8"})) as file:
            return file.read()
    except OSError:
        return b"" if "b" in mode else ""


def look():
    """What src/vllm_spark/network/netplan.py asks of a box beside its netdevs."""
    present = {name: hardware(name) for name in os.listdir("/sys/class/net")}
    seen, files = set(), []
    for folder in FOLDERS:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            path = os.path.join(folder, name)
            # /lib is /usr/lib, and a symlink may show a file twice; netplan reads nothing but *.yaml.
            if name.endswith(".yaml") and os.path.realpath(path) not in seen:
                seen.add(os.path.realpath(path))
                files.append({"path": path, **described(path, present)})
    return {"netplan": shutil.which("netplan") or "", "files": files, "reached_by": reached_by()}


def hardware(name):
    driver = os.path.realpath(f"/sys/class/net/{name}/device/driver")
    return {"mac": read(f"/sys/class/net/{name}/address").strip(), "driver": os.path.basename(driver)}


def described(path, present):
    """What a netplan file configures. Its text does not leave the box: it may hold the password of a WiFi."""
    if yaml is None:
        return {"netdevs": [], "more": [], "error": "PyYAML is missing, so it cannot be read"}
    try:
        netdevs, more = definitions(yaml.safe_load(read(path)), present)
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        return {"netdevs": [], "more": [], "error": f"not a netplan file: {type(error).__name__}"}
    return {"netdevs": netdevs, "more": more, "error": ""}


def definitions(document, present):
    """(the netdevs that a netplan document configures, what it says beside ethernets)."""
    network = (document or {}).get("network") or {}
    ethernets = network.get("ethernets") or {}
    named = {name: matching(name, definition or {}, present) for name, definition in ethernets.items()}
    found = set().union(*named.values())
    more = sorted(section for section in network if section not in ("version", "ethernets"))
    for section in more:
        devices = network[section] if isinstance(network[section], dict) else {}
        for definition in devices.values():
            # A bond, a bridge or a VLAN on top of a netdev configures it too.
            below = [*((definition or {}).get("interfaces") or []), (definition or {}).get("link")]
            for name in filter(None, below):
                found |= named.get(name, {name})
    return sorted(found), more


def matching(name, definition, present):
    """The netdevs of one entry: without `match` its name, else every netdev that meets all of it."""
    match = definition.get("match")
    if match is None:
        return {name}
    drivers = match.get("driver", "*")
    found = {
        netdev
        for netdev, has in present.items()
        if fnmatch.fnmatch(netdev, match.get("name", "*"))
        and has["mac"].lower() == match.get("macaddress", has["mac"]).lower()
        and any(fnmatch.fnmatch(has["driver"], each) for each in ([drivers] if isinstance(drivers, str) else drivers))
    }
    return found | ({definition["set-name"]} if "set-name" in definition else set())


def reached_by():
    """The netdev with the address that the ssh session came to. sudo drops the variable; the shell above it has it."""
    pid = os.getpid()
    while pid > 1:
        for entry in read(f"/proc/{pid}/environ", "rb").split(b"\0"):
            if entry.startswith(b"SSH_CONNECTION="):
                return netdev_of(entry.decode().split()[2].partition("%")[0])
        pid = int(read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
    return ""


def netdev_of(address):
    found = (
        link["ifname"] for link in ip_json("addr") if any(a.get("local") == address for a in link.get("addr_info", []))
    )
    return next(found, "")
