"""The processes that listen on TCP ports of this host, with their containers and units. Reads only."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_spark.core.types import PortHolder

# The kernel's number of the state LISTEN.
TCP_LISTEN = "0A"
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def listeners(ports: Collection[int]) -> dict[str, int]:
    """Return inode of a listening socket -> port, from the kernel's own tables."""
    inodes = {}
    # A host whose kernel has IPv6 switched off has no second table.
    for table in filter(os.path.exists, TABLES):
        with open(table, encoding="ascii") as file:
            for fields in (line.split() for line in file.readlines()[1:]):
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == TCP_LISTEN and port in ports:
                    inodes[fields[9]] = port
    return inodes


def holders(ports: Iterable[int], container_names: Mapping[str, str]) -> dict[str, PortHolder]:
    """Return port -> the process that listens there. `container_names`: id of a container -> its name."""
    inodes = listeners(set(ports))
    result: dict[str, PortHolder] = {}
    for link in glob.glob("/proc/[0-9]*/fd/*") if inodes else []:
        try:
            target = os.readlink(link)
        except OSError:
            continue  # the process has ended, or has closed the file
        port = inodes.get(target[8:-1]) if target.startswith("socket:[") else None
        if port is not None:
            result[str(port)] = owner(link.split("/")[2], container_names)
    for port in inodes.values():
        result.setdefault(str(port), {"process": "a process of another namespace", "pid": 0})
    return result


def owner(pid: str, container_names: Mapping[str, str]) -> PortHolder:
    """Return the name of a process with its container or unit. Raises OSError if the process has ended."""
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        process = file.read().strip()
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        cgroup = file.read()
    container = re.search(r"[0-9a-f]{64}", cgroup)
    unit = re.search(r"([^/\n]+\.service)", cgroup)
    return {
        "process": process,
        "pid": int(pid),
        "container": container_names.get(container[0], container[0][:12]) if container else None,
        "unit": unit[1] if unit and not container else None,
    }


def names_by_id(containers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {container["id"]: name for name, container in containers.items()}
