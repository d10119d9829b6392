#!/usr/bin/python
"""Everything that a plan asks of a Spark, in one round trip. Reads only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_facts
short_description: Read what a plan needs to know of a Spark, in one round trip
description:
  - Answers the questions of C(vllm_spark.deploy.plan.questions). Changes nothing.
author: vllm-spark
options:
  images:
    description: Images to look for, each as C(repository@sha256:…).
    type: list
    elements: str
    default: []
  paths:
    description: Folders that must exist and hold something.
    type: list
    elements: path
    default: []
  checksums:
    description: Files to take the sha256 of.
    type: list
    elements: path
    default: []
  ports:
    description: TCP ports whose holder is named.
    type: list
    elements: int
    default: []
  units:
    description: Units whose state is read.
    type: list
    elements: str
    default: []
  records:
    description: Deployment name to the path of its deployed.json.
    type: dict
    default: {}
  fabric:
    description: Read the RoCE fabric too (netdevs, HCAs, GIDs, routes), as RV(facts.fabric).
    type: bool
    default: false
  weights:
    description: Model folders whose safetensors headers are read, as RV(facts.weights).
    type: list
    elements: path
    default: []
  disks:
    description: Folders, which need not exist, whose disk is measured, as RV(facts.disks).
    type: list
    elements: path
    default: []
  host:
    description:
      - Read what C(vllm_spark.preflight.host_warnings) judges too, as RV(facts.host) — who uses the GPU,
        what Ollama has loaded, firmware, a pending reboot.
    type: bool
    default: false
  status:
    description:
      - Read what C(status) shows too, of every deployment that lies here, as RV(facts.status). Where requests run, this
        takes a second.
    type: bool
    default: false
  env_path:
    description: An env file to compare, with RV(facts.status) naming the variables that differ.
    type: path
  env_content:
    description: What it shall hold. Never shown.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: It only reads.
"""

EXAMPLES = r"""
- name: Ask the Spark
  spark_facts:
    images: ["vllm/vllm-openai@sha256:…"]
    ports: [8000]
"""

RETURN = r"""
facts:
  description: The answers. Sizes in bytes, times in seconds since the epoch.
  returned: always
  type: dict
"""

import glob
import hashlib
import importlib.util
import json
import os
import platform
import re
import time

from ansible.module_utils import spark_lock, spark_status
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_docker import Docker, DockerError
from ansible.module_utils.spark_fabric import fabric
from ansible.module_utils.spark_host import docker_host, gpus, host, memory, processes, run
from ansible.module_utils.spark_ollama import loaded
from ansible.module_utils.spark_safetensors import summary

CONFIG_DIR = "/etc/vllm-spark"
RUN_DIR = "/run/vllm-spark"
UNIT_PROPERTIES = (
    *("ActiveState", "SubState", "UnitFileState", "NRestarts", "Result", "NeedDaemonReload"),
    "ActiveEnterTimestampMonotonic",
)
TCP_LISTEN = "0A"


def docker_facts(images, more):
    """(facts of the engine, image -> id or None). With `more`, those of spark_host.docker_host as well."""
    missing = "" if importlib.util.find_spec("requests") else "requests"
    facts = {"version": "", "error": "", "missing_python": missing, "containers": {}}
    found = dict.fromkeys(images)
    try:
        docker = Docker()
        facts["version"] = docker.get("/version")["Version"]
        facts["containers"] = docker.containers("vllm-spark.deployment")
        for image in images:
            found[image] = (docker.get(f"/images/{image}/json", missing_ok=True) or {}).get("Id")
        if more:
            facts |= docker_host(docker)
            facts["disk"] = disk(facts["root"]) if facts["root"] else None
    except DockerError as error:
        facts["error"] = str(error)
    return facts, found


def checksum(path):
    if not os.path.isfile(path):
        return None
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def listeners(ports):
    """Inodes of listening sockets by port, from the kernel's own tables."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as file:
            for fields in (line.split() for line in file.readlines()[1:]):
                port = int(fields[1].rpartition(":")[2], 16)
                if fields[3] == TCP_LISTEN and port in ports:
                    found[fields[9]] = port
    return found


def holders(ports, containers):
    """port -> who listens there: process, pid, and its container or unit where it has one."""
    inodes = listeners(set(ports))
    found = {}
    for link in glob.glob("/proc/[0-9]*/fd/*") if inodes else []:
        try:
            target = os.readlink(link)
        except OSError:
            continue  # the process ended, or closed it, while we looked
        port = inodes.get(target[8:-1]) if target.startswith("socket:[") else None
        if port is not None:
            found[str(port)] = owner(link.split("/")[2], containers)
    for port in inodes.values():
        found.setdefault(str(port), {"process": "a process of another namespace", "pid": 0})
    return found


def owner(pid, containers):
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        process = file.read().strip()
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
        cgroup = file.read()
    identity = re.search(r"[0-9a-f]{64}", cgroup)
    unit = re.search(r"([^/\n]+\.service)", cgroup)
    named = {c["id"]: name for name, c in containers.items()}
    return {
        "process": process,
        "pid": int(pid),
        "container": named.get(identity[0], identity[0][:12]) if identity else None,
        "unit": unit[1] if unit and not identity else None,
    }


def enabled_units():
    """Of vllm@, by the links that systemctl enable makes: one whose unit file is gone has its link still, and starts
    with a boot as soon as that is back."""
    return sorted({os.path.basename(link) for link in glob.glob("/etc/systemd/system/*.wants/vllm@*.service")})


def units(names):
    """State of the named units, and the names of all vllm@ units that run."""
    _, text = run("systemctl", "show", "--property", ",".join(("Id", *UNIT_PROPERTIES)), *names)
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in text.split("\n\n")]
    status, running = run(
        "systemctl",
        "list-units",
        "--plain",
        "--no-legend",
        "--state",
        "active,activating,deactivating",
        "vllm@*.service",
    )
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    for block in blocks:
        block["active_s"] = max(0.0, now - int(block.pop("ActiveEnterTimestampMonotonic", 0)) / 1e6)
    return (
        {block.pop("Id"): block for block in blocks if "Id" in block},
        [line.split()[0] for line in running.splitlines() if line] if status == 0 else [],
    )


def records(paths):
    """(deployed.json by deployment, modification time of its env file)."""
    found, times = {}, {}
    for name, path in paths.items():
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                found[name] = json.load(file)
        env = os.path.join(os.path.dirname(path), "env")
        if os.path.isfile(env):
            times[name] = os.path.getmtime(env)
    return found, times


def placed():
    """The deployments that lie on this box, known to the inventory or not."""
    return sorted(path.split("/")[-2] for path in glob.glob(f"{CONFIG_DIR}/*/launch"))


def rank_states(names):
    """What the supervisor of a pair's rank says of itself, by deployment."""
    found = {}
    for name in names:
        try:
            with open(f"{RUN_DIR}/{name}/state.json", encoding="utf-8") as file:
                found[name] = json.load(file)
        except (OSError, ValueError):
            continue  # a deployment of one Spark has none, nor has one that never ran
    return found


def disk(path):
    """Bytes of the disk that a folder is on, or will be."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return {"total": found.f_frsize * found.f_blocks, "free": found.f_frsize * found.f_bavail}


def host_facts(docker):
    """What the judge of the host asks beside what every plan needs."""
    named = {name: {"id": identity} for identity, name in docker.pop("running", {}).items()}
    return {**host(), "processes": processes(lambda pid: owner(pid, named)), "ollama": loaded()}


def status_facts(names, docker, asked):
    """What status shows beside. The second look at the counters comes last, when most of its second has passed."""
    found, first = spark_status.deployments(names), {}
    for name, entry in found.items():
        container = docker["containers"].get(f"vllm-{name}")
        # Of what runs only: another deployment may serve on the same port.
        running = container and container["state"] == "running"
        first[name] = spark_status.first_look(entry["address"]) if running else None
        entry["derived"] = spark_status.derived(Docker(), container) if container else None
    facts = {
        "deployments": found,
        "files": spark_status.files(names),
        "lock": spark_lock.look(),
        "env": spark_status.env_changes(asked["env_path"], asked["env_content"]) if asked["env_path"] else None,
    }
    for name, entry in found.items():
        looks = [first[name], spark_status.second_look(entry["address"], first[name])]
        entry["counters"] = [look for look in looks if look]
    return facts


def main():
    began = time.time()
    spec = {
        "images": {"type": "list", "elements": "str", "default": []},
        "paths": {"type": "list", "elements": "path", "default": []},
        "checksums": {"type": "list", "elements": "path", "default": []},
        "ports": {"type": "list", "elements": "int", "default": []},
        "units": {"type": "list", "elements": "str", "default": []},
        "records": {"type": "dict", "default": {}},
        "fabric": {"type": "bool", "default": False},
        "weights": {"type": "list", "elements": "path", "default": []},
        "disks": {"type": "list", "elements": "path", "default": []},
        "host": {"type": "bool", "default": False},
        "status": {"type": "bool", "default": False},
        "env_path": {"type": "path"},
        "env_content": {"type": "str", "default": "", "no_log": True},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    asked = module.params
    docker, images = docker_facts(asked["images"], asked["host"])
    cards, gpu_error = gpus()
    lying = placed() if asked["status"] else []
    more = [name for name in lying if name not in asked["records"]]
    states, running = units([*asked["units"], *(f"vllm@{name}.service" for name in more)])
    deployed, env_times = records({**asked["records"], **{name: f"{CONFIG_DIR}/{name}/deployed.json" for name in more}})
    facts = {
        "hostname": platform.node(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "memory": memory(),
        "gpus": cards,
        "gpu_error": gpu_error,
        "docker": docker,
        "images": images,
        "paths": {path: os.path.isdir(path) and bool(os.listdir(path)) for path in asked["paths"]},
        "checksums": {path: checksum(path) for path in asked["checksums"]},
        "ports": holders(asked["ports"], docker["containers"]),
        "units": states,
        "running_units": running,
        "enabled_units": enabled_units(),
        "placed": placed(),
        "records": deployed,
        "env_mtimes": env_times,
        "states": rank_states([*asked["records"], *more]),
        "weights": {path: summary(path) for path in asked["weights"]},
        "disks": {path: disk(path) for path in asked["disks"]},
    }
    if asked["fabric"]:
        facts["fabric"] = fabric()
    if asked["host"]:
        facts["host"] = host_facts(docker)
    if asked["status"]:
        facts["status"] = status_facts(lying, docker, asked)
    # By this box's clock, for who asked to compare with its own.
    facts["time"] = {"began": began, "ended": time.time()}
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
