"""The state of a Spark's host beside the fabric: GPU and its processes, memory, firmware, pending reboot. Reads only.

A value that a host does not have or does not report is None or empty, and no finding is derived from it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import DockerError, store
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    NOT_FOUND,
    TIMED_OUT,
    CommandResult,
    read_text,
    run,
)

if TYPE_CHECKING:
    from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import Docker

    from vllm_spark.core.types import (
        CdiFacts,
        FirewallFacts,
        GpuFacts,
        HostFacts,
        InputRules,
        MemoryFacts,
        PortHolder,
        ProcessFacts,
    )

# Fields of nvidia-smi that every driver of a GB10 has, and those that some drivers do not know.
NEEDED = ("name", "driver_version")
STATE = ("power.draw", "utilization.gpu", "clocks.sm", "clocks_event_reasons.active", "persistence_mode")
APPS = ("pid", "process_name", "used_gpu_memory")

# Keys of a CDI file, in YAML or JSON: its kind, a device, and a path of the host that a container gets. A host has no
# parser of YAML.
CDI_GPU = re.compile(r"""["']?kind["']?: *["']?nvidia\.com/gpu(?![\w.-])""")
CDI_ALL = re.compile(r"""["']?name["']?: *["']?all(?![\w.-])""")
CDI_SOURCE = re.compile(r"""["']?hostPath["']?: *["']?(/[^"',\s}]+)""")


def text(path: str) -> str | None:
    """Return a file's text without surrounding white space, or None."""
    content = read_text(path)
    return None if content is None else content.strip()


def names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def memory(root: str = "/") -> MemoryFacts:
    """Return the memory in bytes, from /proc/meminfo. page_cache is the part that files use, which `available` counts
    as free."""
    with open(os.path.join(root, "proc/meminfo"), encoding="ascii") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    facts: MemoryFacts = {
        "total": kib["MemTotal"] * 1024,
        "available": kib["MemAvailable"] * 1024,
        "swap_total": kib["SwapTotal"] * 1024,
        "swap_free": kib["SwapFree"] * 1024,
    }
    # These are not in every kernel's table.
    if "MemFree" in kib:
        facts["free"] = kib["MemFree"] * 1024
    if "CmaTotal" in kib:
        facts["cma_total"] = kib["CmaTotal"] * 1024
    if "CmaFree" in kib:
        facts["cma_free"] = kib["CmaFree"] * 1024
    if {"Cached", "Shmem"} <= kib.keys():
        # Cached counts tmpfs and shared memory, which cannot be dropped.
        facts["page_cache"] = (kib["Cached"] - kib["Shmem"]) * 1024
    return facts


def gpus() -> tuple[list[GpuFacts], str]:
    """Return (the GPUs, the reason why there is none). A field that this driver or a GB10 does not have is None."""
    result = smi("gpu", (*NEEDED, *STATE))
    if result.status and result.status not in (NOT_FOUND, TIMED_OUT):
        result = smi("gpu", NEEDED)
    if result.status:
        return [], result.output
    return [gpu(line.split(", ")) for line in result.output.splitlines() if ", " in line], ""


def smi(subject: str, fields: Sequence[str]) -> CommandResult:
    return run("nvidia-smi", f"--query-{subject}={','.join(fields)}", "--format=csv,noheader,nounits")


def gpu(row: Sequence[str]) -> GpuFacts:
    values = dict(zip((*NEEDED, *STATE), row, strict=False))
    reasons = values.get("clocks_event_reasons.active", "")
    return {
        "name": values["name"],
        "driver": values["driver_version"],
        "power_w": number(values.get("power.draw")),
        "load_percent": number(values.get("utilization.gpu")),
        "sm_mhz": number(values.get("clocks.sm")),
        "event_reasons": int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else None,
        "persistence": {"Enabled": True, "Disabled": False}.get(values.get("persistence_mode", "")),
    }


def number(value: str | None) -> float | None:
    """Return a number of nvidia-smi, or None for [N/A] and similar texts."""
    return float(value) if value and re.fullmatch(r"\d+(\.\d+)?", value) else None


def host(root: str = "/") -> HostFacts:
    """Return the facts of the kernel and the firmware. `nics`: HCA -> firmware version."""
    packages = text(os.path.join(root, "run/reboot-required.pkgs")) or ""
    swappiness = text(os.path.join(root, "proc/sys/vm/swappiness")) or ""
    infiniband = os.path.join(root, "sys/class/infiniband")
    firmware = {name: text(os.path.join(infiniband, name, "fw_ver")) for name in names(infiniband)}
    return {
        "swappiness": int(swappiness) if swappiness.isdigit() else None,
        "bios": text(os.path.join(root, "sys/class/dmi/id/bios_version")),
        "nics": {name: version for name, version in firmware.items() if version},
        "reboot": sorted(set(packages.split())) if os.path.exists(os.path.join(root, "run/reboot-required")) else None,
    }


def firewall(root: str = "/") -> FirewallFacts:
    """Return whether incoming connections are dropped, and the netdevs on which everything is accepted."""
    enabled = re.search(r"^ENABLED=yes", text(os.path.join(root, "etc/ufw/ufw.conf")) or "", re.MULTILINE)
    rules = run("iptables", "--list-rules")
    firewalld = run("systemctl", "is-active", "--quiet", "firewalld.service").status == 0
    found = input_rules("" if rules.status else rules.stdout)
    if firewalld:
        # Its rules are in a table of nft, which iptables does not show.
        trusted = run("firewall-cmd", "--zone=trusted", "--list-interfaces").stdout.split()
        found = {"policy": "REJECT", "open_netdevs": sorted({*found["open_netdevs"], *trusted})}
    return {"ufw": bool(enabled), "firewalld": firewalld, **found}


def input_rules(rules: str) -> InputRules:
    """Return the policy of INPUT and the open netdevs from the output of iptables -S; the policy is empty if there is
    no output. ufw has its rules for a netdev in the chain ufw-user-input."""
    policy = re.search(r"^-P INPUT (\S+)", rules, re.MULTILINE)
    accepted = re.findall(r"^-A \S+ -i (\S+) -j ACCEPT$", rules, re.MULTILINE)
    return {"policy": policy[1] if policy else "", "open_netdevs": sorted(set(accepted) - {"lo"})}


def processes(owner: Callable[[str], PortHolder]) -> list[ProcessFacts]:
    """Return the processes that compute on the GPU. `owner` maps a pid to its container or unit. `bytes` is None if
    the driver does not report it."""
    result = smi("compute-apps", APPS)
    rows = [] if result.status else [line.split(", ") for line in result.output.splitlines()]
    facts: list[ProcessFacts] = []
    for row in rows:
        # The name of a process may contain a comma.
        if len(row) >= len(APPS) and row[0].isdigit():
            used_mib = number(row[-1])
            entry: ProcessFacts = {
                "pid": int(row[0]),
                "process": os.path.basename(", ".join(row[1:-1])),
                "bytes": None if used_mib is None else int(used_mib * (1 << 20)),
            }
            holder = owned(owner, row[0])
            if holder:
                entry["container"], entry["unit"] = holder.get("container"), holder.get("unit")
            facts.append(entry)
    return facts


def owned(owner: Callable[[str], PortHolder], pid: str) -> PortHolder | None:
    try:
        return owner(pid)
    except OSError:
        return None  # the process has ended, or it is in another namespace


def docker_host(docker: Docker, info: dict[str, Any]) -> dict[str, Any]:
    """Return Docker's image store and its folders, the name of each running container by id, and the names of the
    containers that have the GPU. `info` is the answer of /info. Raises DockerError if the engine does not answer."""
    running = {entry["Id"]: entry["Names"][0].lstrip("/") for entry in docker.get("/containers/json")}
    on_gpu = []
    for identity, name in running.items():
        try:
            container = docker.get(f"/containers/{identity}/json", missing_ok=True)
        except DockerError:
            continue
        if container and has_gpu(container):
            on_gpu.append(name)
    return {
        "root": info.get("DockerRootDir"),
        "store": store(info),
        "containerd_root": containerd_root(info),
        "running": running,
        "on_gpu": sorted(on_gpu),
    }


def cdi(info: Mapping[str, Any], root: str = "/") -> CdiFacts:
    """Return how Docker can give the GPU to a container by CDI. `info` is the answer of /info, which lists the folders
    of CDI files unless CDI is off. Of two files the one in the later folder counts, as in CDI itself."""
    folders: list[str] = info.get("CDISpecDirs") or []
    for folder in reversed(folders):
        for name in names(os.path.join(root, folder.lstrip("/"))):
            path = os.path.join(folder, name)
            content = text(os.path.join(root, path.lstrip("/"))) or "" if name.endswith((".yaml", ".json")) else ""
            if CDI_GPU.search(content) and CDI_ALL.search(content):
                absent = (one for one in CDI_SOURCE.findall(content) if not os.path.exists(root + one.lstrip("/")))
                return {"enabled": True, "file": path, "missing": next(absent, "")}
    return {"enabled": bool(folders), "file": "", "missing": ""}


def containerd_root(info: dict[str, Any], root: str = "/") -> str | None:
    """Return the folder in which containerd keeps the layers, packed and unpacked, or None if Docker keeps them. `info`
    is the answer of /info."""
    if ["driver-type", "io.containerd.snapshotter.v1"] not in (info.get("DriverStatus") or []):
        return None
    config = text(os.path.join(root, "etc/containerd/config.toml")) or ""
    moved = re.search(r"""^root\s*=\s*["']([^"']+)["']""", config, re.MULTILINE)
    return moved[1] if moved else "/var/lib/containerd"


def has_gpu(container: dict[str, Any]) -> bool:
    """Return True if this container (of docker inspect) has the GPU: by --gpus, by CDI, or by the runtime nvidia."""
    requests = container["HostConfig"].get("DeviceRequests") or []
    if any("gpu" in str((request.get("Capabilities"), request.get("DeviceIDs"))) for request in requests):
        return True
    env: dict[str, str] = dict(entry.partition("=")[::2] for entry in container["Config"].get("Env") or [])
    visible = env.get("NVIDIA_VISIBLE_DEVICES", "")
    return container["HostConfig"].get("Runtime") == "nvidia" and visible not in ("", "void", "none")
