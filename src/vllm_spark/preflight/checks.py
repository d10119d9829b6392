"""Checks of a host before anything changes: the refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.core import ports
from vllm_spark.core.platforms import MACHINES
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.types import Facts
from vllm_spark.inventory.spec import Spec, mount_source
from vllm_spark.preflight import host_warnings
from vllm_spark.recipe import hub_cache
from vllm_spark.sizing import memory

WRONG_ARCHITECTURE = register("wrong-architecture", runbook="wrong-host")
NO_GPU = register("no-gpu", runbook="wrong-host")
ROUTER_KEY = register("router-key", runbook="secrets")
NO_DOCKER = register("no-docker", runbook="docker-missing")
NO_REQUESTS = register("no-requests", runbook="docker-missing")
NO_MODEL = register("no-model", runbook="model-missing")
WRONG_CHECKSUM = register("wrong-checksum", runbook="model-missing")
PORT_TAKEN = register("port-taken", runbook="port-taken")
UNKNOWN_DEPLOYMENT = register("unknown-deployment", runbook="inventory-refused")


def required_ports(spec: Spec) -> Iterator[int]:
    """The ports that must be free here or ours."""
    if spec.rank == 0:
        yield spec.deployment.port
    if len(spec.deployment.hosts) > 1:
        yield from (ports.SUPERVISOR_PORT, ports.RAY_PORT, ports.MASTER_PORT)


def model_folders(spec: Spec) -> list[str]:
    """The snapshot folders that the engine will read: the model's, then the drafter's."""
    sources = [spec.recipe["model"], spec.recipe.get("drafter")]
    return [hub_cache.snapshot(spec.site.hub_dir, source) for source in sources if source]


def refusals(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    """Every reason why this Spark cannot take this deployment."""
    yield from _hardware(spec, facts)
    yield from host_warnings.refusals(spec, facts)
    yield from docker_refusals(facts)
    yield from _model(spec, facts)
    yield from _port(spec, facts)
    yield from _router(spec)
    yield from _strangers(spec, facts)
    yield from memory.refusals(spec, facts)


def _hardware(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    machines = [MACHINES[platform] for platform in spec.platforms]
    if facts["machine"] not in machines:
        yield WRONG_ARCHITECTURE(
            what=f"{spec.host} is {facts['machine']} and image {spec.recipe['image']['repository']} is for "
            f"{', '.join(spec.platforms)}",
            expected=" or ".join(machines),
            fix="name a recipe whose image.platforms has this machine's.",
        )
    if not facts["gpus"]:
        yield NO_GPU(
            what=f"nvidia-smi shows no GPU on {spec.host}: {facts['gpu_error'] or 'an empty list'}",
            expected="one GB10",
            fix="check the driver with nvidia-smi; after an update of DGX OS, reboot.",
        )


def _router(spec: Spec) -> Iterator[Refusal]:
    key = spec.deployment.through.get("key")
    if key and key not in spec.secrets and spec.rank == 0:
        yield ROUTER_KEY(
            what=f"{spec.deployment.name}.through.key names {key}, and vllm_secrets has none of that name",
            expected="the variable that holds the router's key",
            fix=f"add {key} to vllm_secrets, or take through.key away where the router asks for none.",
        )


def docker_refusals(facts: Facts) -> Iterator[Refusal]:
    docker = facts["docker"]
    if not docker["version"]:
        yield NO_DOCKER(
            what=f"no Docker engine answers on this box: {docker['error']}",
            expected="the one that DGX OS ships",
            fix="sudo apt-get install docker.io nvidia-container-toolkit, then sudo systemctl enable --now docker.",
        )
    elif docker["missing_python"]:
        yield NO_REQUESTS(
            what=f"this box's Python has no module {docker['missing_python']}",
            expected="it, because community.docker pulls images through it",
            fix=f"sudo apt-get install python3-{docker['missing_python']}.",
        )


def _model(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    for folder in model_folders(spec):
        if not facts["paths"].get(folder):
            yield NO_MODEL(
                what=f"{folder} does not exist or is empty",
                expected="the model's files at its pinned commit",
                fix=f"ansible-playbook pull.yml -l {','.join(spec.deployment.hosts)}, by hand sudo hf download "
                f"{_repository(spec, folder)} --cache-dir {spec.site.hub_dir}, or set vllm_hub_dir to where they are.",
            )
    for mount in spec.recipe.get("mounts", []):
        source = mount_source(spec, mount)
        if mount["from"] == "model" and facts["checksums"].get(source) != mount["sha256"]:
            yield WRONG_CHECKSUM(
                what=f"{source} has sha256 {facts['checksums'].get(source) or 'none: it does not exist'}",
                expected=f"{mount['sha256']}, which recipe {spec.recipe['name']} was tried with",
                fix="fetch the file again at the pinned commit; if it changed on purpose, the recipe needs a new look.",
            )


def _repository(spec: Spec, folder: str) -> str:
    source = spec.recipe["model"] if folder == model_folders(spec)[0] else spec.recipe["drafter"]
    return f"{source['repository']} --revision {source['revision']}"


def _port(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    containers = {spec.deployment.container, *(f"vllm-{name}" for name in spec.inactive)}
    units = {spec.deployment.unit, *(f"vllm@{name}.service" for name in spec.inactive)}
    for port in required_ports(spec):
        holder = facts["ports"].get(str(port))
        if holder and holder.get("container") not in containers and holder.get("unit") not in units:
            other = "" if port in ports.PORTS else f", or give {spec.deployment.name} another `port`"
            yield PORT_TAKEN(
                what=f"port {port} of {spec.host} is held by {_named(holder)}",
                expected=f"it free for {spec.deployment.name}",
                fix=f"stop that process{other}.",
            )


def _named(holder: Mapping[str, Any]) -> str:
    where = holder.get("container") and f", container {holder['container']}"
    where = where or (holder.get("unit") and f", unit {holder['unit']}") or ""
    return f"{holder['process']} (pid {holder['pid']}{where})"


def _strangers(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    known = {spec.deployment.unit, *(f"vllm@{name}.service" for name in spec.inactive)}
    for unit in facts.get("running_units", []):
        if unit not in known:
            yield UNKNOWN_DEPLOYMENT(
                what=f"{unit} runs on {spec.host} and is not in vllm_deployments",
                expected="no model server that the inventory does not know, because memory holds one",
                fix=f"add it with `active: false`, or: ssh {spec.host} sudo systemctl disable --now {unit}.",
            )
