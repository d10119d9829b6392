#!/usr/bin/python
"""Read the facts of a Spark that a plan needs, in one round trip. Reads only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_facts
short_description: Read the facts of a Spark that a plan needs, in one round trip
description:
  - Reads what C(vllm_spark.deploy.plan.questions) requests. Changes nothing.
author: vllm-spark
options:
  images:
    description: Images whose identity is read, each as C(repository@sha256:…) or as the name of a derived image.
    type: list
    elements: str
    default: []
  paths:
    description: Folders that must exist and must not be empty.
    type: list
    elements: path
    default: []
  folders:
    description: Folders of which RV(facts.folders) has those that exist.
    type: list
    elements: path
    default: []
  unreadable:
    description: Model folders of which RV(facts.unreadable) has the first part that not every user may read.
    type: list
    elements: path
    default: []
  outside:
    description: Model folders of which RV(facts.outside) has the first file that leads out of the model's folder.
    type: list
    elements: path
    default: []
  checksums:
    description: Files whose sha256 is computed.
    type: list
    elements: path
    default: []
  ports:
    description: TCP ports whose listening process is read.
    type: list
    elements: int
    default: []
  units:
    description: Units whose state is read.
    type: list
    elements: str
    default: []
  records:
    description: Deployment name to the path of its deployed.json. RV(facts.files) has the checksums of its files.
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
    description: Folders whose disk is measured, as RV(facts.disks). They need not exist.
    type: list
    elements: path
    default: []
  host:
    description:
      - Read the facts of C(vllm_spark.deploy.host_warnings) too, as RV(facts.host) - processes on the GPU,
        models loaded in Ollama, firmware, the firewall, a pending reboot.
    type: bool
    default: false
  status:
    description:
      - Read the facts of the verb C(status) too, for every deployment on this host, as RV(facts.status). If requests
        run, this takes a second.
    type: bool
    default: false
  edge:
    description: Read the facts of the edge too, as RV(facts.edge).
    type: bool
    default: false
  table:
    description: Read the facts of the firewall table too, as RV(facts.table).
    type: bool
    default: false
  env_path:
    description: An env file to compare. RV(facts.env) names the variables that differ, and never has a value.
    type: path
  env_content:
    description: The desired content of O(env_path). Never shown. Without it nothing is compared.
    type: str
attributes:
  check_mode:
    support: full
    description: The module only reads.
"""

EXAMPLES = r"""
- name: Read the facts of the Spark
  spark_facts:
    images: ["vllm/vllm-openai@sha256:…"]
    ports: [8000]
"""

RETURN = r"""
facts:
  description:
    - The facts, in the shape of C(vllm_spark.core.types.Facts). Sizes in bytes, times in seconds since the epoch.
  returned: always
  type: dict
"""

import os
import platform
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import (
    spark_edge,
    spark_firewall,
    spark_lock,
    spark_status,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import (
    Docker,
    DockerError,
    identity,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_fabric import fabric
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_host import (
    cdi,
    docker_host,
    firewall,
    gpus,
    host,
    memory,
    processes,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_host_layout import DEPLOYMENT_LABEL, LEASE
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_object, sha256
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_ollama import loaded
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_ports import holders, names_by_id, owner
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_readable import first_outside, first_unreadable
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_safetensors import summary
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_units import (
    CONFIG_DIR,
    enabled_units,
    judged,
    placed,
    records,
    states,
    units,
)

if TYPE_CHECKING:
    from vllm_spark.core.types import DiskFacts, HostFacts


def docker_facts(images: Iterable[str], host_too: bool) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Return (facts of the engine, image -> identity or None). With `host_too`, also spark_host.docker_host."""
    facts: dict[str, Any] = {"version": "", "error": "", "containers": {}}
    found: dict[str, str | None] = dict.fromkeys(images)
    try:
        docker = Docker()
        version = docker.get("/version")
        facts["version"], engine_platform = version["Version"], f"{version.get('Os')}/{version.get('Arch')}"
        facts["containers"] = docker.containers(DEPLOYMENT_LABEL)
        for image in found:
            document = docker.get(f"/images/{image}/json", missing_ok=True)
            found[image] = identity(image, document, engine_platform) if document else None
        info = docker.get("/info")
        facts["cdi"], facts["cgroups"] = cdi(info), info.get("CgroupDriver", "")
        if host_too:
            facts |= docker_host(docker, info)
            facts["disk"] = disk(facts["root"]) if facts["root"] else None
            facts["containerd_disk"] = disk(facts["containerd_root"]) if facts["containerd_root"] else None
    except DockerError as error:
        facts["error"] = str(error)
    return facts, found


def disk(path: str) -> DiskFacts:
    """Return the bytes of the disk of a folder, or of its nearest parent that exists."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    stat = os.statvfs(path)
    return {"total": stat.f_frsize * stat.f_blocks, "free": stat.f_frsize * stat.f_bavail}


def host_facts(docker: dict[str, Any]) -> HostFacts:
    """Return the facts of the host warnings. Takes the key `running` out of the facts of Docker."""
    container_names: dict[str, str] = docker.pop("running", {})
    return {
        **host(),
        "processes": processes(lambda pid: owner(pid, container_names)),
        "ollama": loaded(),
        "firewall": firewall(),
    }


def status_facts(names: Iterable[str], docker: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of `status`. The second sample of the counters comes last, after most of its second."""
    deployments = spark_status.deployments(names)
    first: dict[str, dict[str, float] | None] = {}
    for name, entry in deployments.items():
        container = docker["containers"].get(f"vllm-{name}")
        # Only of a running engine: another deployment may serve on the same port.
        running = container and container["state"] == "running"
        first[name] = spark_status.first_sample(entry["address"]) if running else None
        entry["derived"] = spark_status.derived(Docker(), container) if container else None
    facts = {
        "deployments": deployments,
        "lock": spark_lock.read_holder(),
        "lease": read_object(LEASE),
    }
    for name, entry in deployments.items():
        samples = [first[name], spark_status.second_sample(entry["address"], first[name])]
        entry["counters"] = [sample for sample in samples if sample]
    return facts


def main() -> None:
    started_at = time.time()
    spec = {
        "images": {"type": "list", "elements": "str", "default": []},
        "paths": {"type": "list", "elements": "path", "default": []},
        "folders": {"type": "list", "elements": "path", "default": []},
        "checksums": {"type": "list", "elements": "path", "default": []},
        "unreadable": {"type": "list", "elements": "path", "default": []},
        "outside": {"type": "list", "elements": "path", "default": []},
        "ports": {"type": "list", "elements": "int", "default": []},
        "units": {"type": "list", "elements": "str", "default": []},
        "records": {"type": "dict", "default": {}},
        "fabric": {"type": "bool", "default": False},
        "weights": {"type": "list", "elements": "path", "default": []},
        "disks": {"type": "list", "elements": "path", "default": []},
        "host": {"type": "bool", "default": False},
        "status": {"type": "bool", "default": False},
        "edge": {"type": "bool", "default": False},
        "table": {"type": "bool", "default": False},
        "env_path": {"type": "path"},
        "env_content": {"type": "str", "no_log": True},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    params = module.params
    docker, images = docker_facts(params["images"], params["host"])
    cards, gpu_error = gpus()
    on_disk = placed() if params["status"] else []
    more = [name for name in on_disk if name not in params["records"]]
    unit_states, running = units([*params["units"], *(f"vllm@{name}.service" for name in more)])
    more_records = {name: f"{CONFIG_DIR}/{name}/deployed.json" for name in more}
    deployed, broken, env_mtimes = records({**params["records"], **more_records})
    facts = {
        "hostname": platform.node(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "memory": memory(),
        "gpus": cards,
        "gpu_error": gpu_error,
        "docker": docker,
        "images": images,
        "paths": {path: os.path.isdir(path) and bool(os.listdir(path)) for path in params["paths"]},
        "folders": [path for path in params["folders"] if os.path.isdir(path)],
        "files": spark_status.files([*params["records"], *more]),
        "checksums": {path: sha256(path) for path in params["checksums"]},
        "unreadable": {path: first_unreadable(path) for path in params["unreadable"]},
        "outside": {path: first_outside(path) for path in params["outside"]},
        "ports": holders(params["ports"], names_by_id(docker["containers"])),
        "units": unit_states,
        "running_units": running,
        "enabled_units": enabled_units(),
        "placed": placed(),
        "records": deployed,
        "broken_records": broken,
        "env_mtimes": env_mtimes,
        "judged": {name: judged(name) for name in params["records"]},
        "states": states([*params["records"], *more]),
        "launches": {name: found for name in params["records"] if (found := spark_status.present(name))},
        "weights": {path: summary(path) for path in params["weights"]},
        "disks": {path: disk(path) for path in params["disks"]},
    }
    if params["env_path"] and params["env_content"] is not None:
        facts["env"] = spark_status.env_changes(params["env_path"], params["env_content"])
    if params["fabric"]:
        facts["fabric"] = fabric()
    if params["edge"]:
        facts["edge"] = spark_edge.facts()
    if params["table"]:
        facts["table"] = spark_firewall.facts()
    if params["host"]:
        facts["host"] = host_facts(docker)
    if params["status"]:
        facts["status"] = status_facts(on_disk, docker)
    # By the clock of this host; the controller compares it with its own.
    facts["time"] = {"began": started_at, "ended": time.time()}
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
