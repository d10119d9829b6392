"""What a Spark's host says of itself beside the fabric: GPU, who uses it, memory, firmware, pending reboot. Reads only.

Whatever a box does not have, or does not show, is None or empty: no finding is made of it.
"""

from __future__ import annotations

import os
import re
import subprocess

from ansible.module_utils.spark_docker import DockerError

TIMEOUT_S = 30
NOT_FOUND, TIMED_OUT = 127, 124

# What nvidia-smi is asked, and the fields of it that every driver of a GB10 has.
NEEDED = ("name", "driver_version")
STATE = ("power.draw", "utilization.gpu", "clocks.sm", "clocks_event_reasons.active", "persistence_mode")
APPS = ("pid", "process_name", "used_gpu_memory")

MEMINFO = {"total": "MemTotal", "available": "MemAvailable", "swap_total": "SwapTotal", "swap_free": "SwapFree"}
# Not in every kernel's table.
MORE_MEMINFO = {"free": "MemFree", "cma_total": "CmaTotal", "cma_free": "CmaFree"}


def run(*words):
    """(exit status, output) of a command; a missing program is 127 and its name."""
    try:
        # S603: the words are constants.
        done = subprocess.run(  # noqa: S603
            words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, errors="replace"
        )
    except FileNotFoundError:
        return NOT_FOUND, f"{words[0]}: not found"
    except subprocess.TimeoutExpired:
        return TIMED_OUT, f"{words[0]} did not answer within {TIMEOUT_S} s"
    return done.returncode, (done.stdout or done.stderr).strip()


def text(path):
    """A file's text, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def names(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def memory(root="/"):
    """Bytes, of /proc/meminfo. page_cache is what files hold of it, which `available` counts as free."""
    with open(os.path.join(root, "proc/meminfo"), encoding="ascii") as file:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in file}
    found = {name: kib[key] * 1024 for name, key in MEMINFO.items()}
    found |= {name: kib[key] * 1024 for name, key in MORE_MEMINFO.items() if key in kib}
    if {"Cached", "Shmem"} <= kib.keys():
        # Cached counts tmpfs and shared memory, which cannot be dropped.
        found["page_cache"] = (kib["Cached"] - kib["Shmem"]) * 1024
    return found


def gpus():
    """(the GPUs, why there is none). A field that this driver does not know, or that a GB10 has not, is None."""
    status, said = smi("gpu", (*NEEDED, *STATE))
    if status and status not in (NOT_FOUND, TIMED_OUT):
        status, said = smi("gpu", NEEDED)
    if status:
        return [], said
    return [gpu(line.split(", ")) for line in said.splitlines() if ", " in line], ""


def smi(what, fields):
    return run("nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits")


def gpu(row):
    values = dict(zip((*NEEDED, *STATE), row, strict=False))
    reasons = values.get("clocks_event_reasons.active", "")
    return {
        "name": values["name"],
        "driver": values["driver_version"],
        "power_w": number(values.get("power.draw")),
        "load_percent": number(values.get("utilization.gpu")),
        "sm_mhz": number(values.get("clocks.sm")),
        "event_reasons": int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else None,
        "persistence": {"Enabled": True, "Disabled": False}.get(values.get("persistence_mode")),
    }


def number(value):
    """A number of nvidia-smi's, or None for [N/A] and its like."""
    return float(value) if re.fullmatch(r"\d+(\.\d+)?", value or "") else None


def host(root="/"):
    """What the kernel and the firmware say. NICs by HCA."""
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


def processes(owner):
    """Who computes on the GPU: pid, process, bytes (None where the driver does not tell), and what `owner` says of the
    pid, its container or unit."""
    status, said = smi("compute-apps", APPS)
    rows = [] if status else [line.split(", ") for line in said.splitlines()]
    found = []
    for row in rows:
        # A process may have a comma in its name.
        if len(row) >= len(APPS) and row[0].isdigit():
            used = number(row[-1])
            known = {"pid": int(row[0]), "process": os.path.basename(", ".join(row[1:-1]))}
            found.append({**owned(owner, row[0]), **known, "bytes": None if used is None else int(used * (1 << 20))})
    return found


def owned(owner, pid):
    try:
        return owner(pid)
    except OSError:
        return {}  # it ended while we looked, or lives in another namespace


def docker_host(docker):
    """Where Docker keeps images, the names of all running containers by id, and the names of those that were given the
    GPU. Raises DockerError where the engine does not answer."""
    running = {entry["Id"]: entry["Names"][0].lstrip("/") for entry in docker.get("/containers/json")}
    given = []
    for identity, name in running.items():
        try:
            shown = docker.get(f"/containers/{identity}/json", missing_ok=True)
        except DockerError:
            continue
        if shown and has_gpu(shown):
            given.append(name)
    return {"root": docker.get("/info").get("DockerRootDir"), "running": running, "on_gpu": sorted(given)}


def has_gpu(shown):
    """Was this container (of docker inspect) given the GPU: by --gpus, by CDI, or by the runtime nvidia?"""
    asked = shown["HostConfig"].get("DeviceRequests") or []
    if any("gpu" in str((one.get("Capabilities"), one.get("DeviceIDs"))) for one in asked):
        return True
    env = dict(word.partition("=")[::2] for word in shown["Config"].get("Env") or [])
    visible = env.get("NVIDIA_VISIBLE_DEVICES", "")
    return shown["HostConfig"].get("Runtime") == "nvidia" and visible not in ("", "void", "none")
