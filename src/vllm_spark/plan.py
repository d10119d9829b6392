"""Stage 2: spec and facts in; files, actions or refusals out. Pure: no I/O, no Ansible, golden-tested.

Facts are what plugins/modules/spark_facts.py returns for the questions of `questions`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_spark import gates, launch, memory
from vllm_spark.refusal import Refusal
from vllm_spark.spec import UNIT_FILE, Spec

Facts = Mapping[str, Any]

LOOPBACK = "127.0.0.1"

# `uname -m` of a platform that an image is built for.
MACHINES = {"linux/arm64": "aarch64", "linux/amd64": "x86_64"}


@dataclass(frozen=True, slots=True)
class File:
    """A file of the toolkit on the box. `syntax` names the shell that must accept it before it is placed."""

    path: str
    content: str
    mode: str = "0644"
    syntax: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What `deploy` does to one Spark."""

    unit: str
    container: str
    image: str
    platform: str
    pull: bool
    folders: Sequence[str]
    files: Sequence[File]
    env_path: str
    keep_previous: bool
    stop_units: Sequence[str]
    state: str  # restarted or started; started is idle where the unit runs already
    settled: bool  # the unit is enabled and active, so there is nothing to start
    reason: str
    gates: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def questions(spec: Spec) -> dict[str, Any]:
    """What the facts module is asked: everything in one round trip, nothing that no step needs."""
    checksums = [launch.mount_source(spec, m) for m in spec.recipe.get("mounts", []) if m["from"] == "model"]
    return {
        "images": [spec.image],
        "paths": model_folders(spec),
        "checksums": checksums,
        "ports": [spec.deployment.port],
        "units": [spec.deployment.unit],
        "records": {spec.deployment.name: f"{spec.config_dir}/deployed.json"},
    }


def model_folders(spec: Spec) -> list[str]:
    """The snapshot folders that the engine will read: the model's, then the drafter's."""
    sources = [spec.recipe["model"], spec.recipe.get("drafter")]
    return [launch.snapshot(spec.site.hub_dir, source) for source in sources if source]


def refusals(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    """Every reason why this Spark cannot take this deployment."""
    yield from _hardware(spec, facts)
    yield from _docker(facts)
    yield from _model(spec, facts)
    yield from _port(spec, facts)
    yield from _strangers(spec, facts)
    yield from memory.refusals(spec, facts)


def build(spec: Spec, facts: Facts, toolkit: str) -> Plan:
    """The plan for a box that nothing refuses. `toolkit` is this checkout's version and commit."""
    record = facts["records"].get(spec.deployment.name) or {}
    fingerprint = launch.fingerprint(spec)
    running = _running(facts, spec.deployment.container)
    state, reason = _state(spec, facts, fingerprint, running)
    config = spec.config_dir
    deployed = _record(spec, record, fingerprint, toolkit)
    return Plan(
        unit=spec.deployment.unit,
        container=spec.deployment.container,
        image=spec.image,
        platform=next(p for p in spec.platforms if MACHINES[p] == facts["machine"]),
        pull=facts["images"].get(spec.image) is None,
        folders=[config, f"{config}/mounts", f"{spec.site.cache_dir}/{spec.deployment.name}"],
        files=[
            *(_mounted_files(spec)),
            File(f"{config}/launch", launch.script(spec), "0755", syntax="sh"),
            File(f"{config}/deployed.json", json.dumps(deployed, indent=2, sort_keys=True) + "\n"),
            File(UNIT_FILE, launch.unit_file()),
        ],
        env_path=f"{config}/env",
        keep_previous=bool(record) and record.get("launch") != fingerprint,
        stop_units=_to_stop(spec, facts),
        state=state,
        settled=state == "started" and _settled(facts["units"].get(spec.deployment.unit, {})),
        reason=reason,
        gates=gates.request(spec, fingerprint),
    )


def summary(spec: Spec, plan: Plan) -> list[str]:
    """What an operator should know before anything happens: what runs here and why, and what stands open."""
    act = "stays" if plan.settled else plan.state
    lines = [f"{spec.recipe['name']} on port {spec.deployment.port}: {plan.unit} {act}, {plan.reason}"]
    if plan.pull:
        lines.append(f"image {plan.image} is not here yet")
    lines += [f"{unit} stops: the inventory has made it inactive" for unit in plan.stop_units]
    if spec.deployment.bind != LOOPBACK and "VLLM_API_KEY" not in spec.secrets:
        lines.append(f"whoever reaches port {spec.deployment.port} may use it: vllm_secrets has no VLLM_API_KEY")
    return lines


def _mounted_files(spec: Spec) -> Iterator[File]:
    for mount in spec.recipe.get("mounts", []):
        if mount["from"] == "toolkit":
            yield File(launch.mount_source(spec, mount), spec.files[mount["path"]])


def _record(spec: Spec, old: Mapping[str, Any], fingerprint: str, toolkit: str) -> dict[str, Any]:
    """deployed.json. The toolkit that placed this launch stays named until the launch changes."""
    same = old.get("launch") == fingerprint
    recipe = spec.recipe
    new = {
        "deployment": spec.deployment.name,
        "rank": spec.rank,
        "recipe": recipe["name"],
        "recipe_sha256": spec.recipe_sha256,
        "image": f"{recipe['image']['repository']}:{recipe['image']['tag']}",
        "digest": spec.digest,
        "engine": recipe["engine"]["version"],
        "model": f"{recipe['model']['repository']}@{recipe['model']['revision']}",
        "launch": fingerprint,
        "port": spec.deployment.port,
    }
    previous = old.get("previous") if same else {key: old[key] for key in sorted(old) if key != "previous"}
    return new | {"toolkit": old["toolkit"] if same else toolkit, "previous": previous or None}


def _running(facts: Facts, container: str) -> Mapping[str, Any] | None:
    found = facts["docker"].get("containers", {}).get(container)
    return found if found and found["state"] == "running" else None


def _state(spec: Spec, facts: Facts, fingerprint: str, running: Mapping[str, Any] | None) -> tuple[str, str]:
    """restarted or started, and why. The running container's own label decides, so that a run which was cut
    off between the file and the restart is finished by the next."""
    unit = facts["units"].get(spec.deployment.unit, {})
    if running is None:
        return "started", "it is not running" if unit.get("ActiveState") != "active" else "it is starting"
    if running["labels"].get("vllm-spark.launch") != fingerprint:
        return "restarted", "its launch changed"
    if facts.get("env_mtimes", {}).get(spec.deployment.name, 0) > running["started"]:
        return "restarted", "its env file changed"
    return "started", "it runs as planned" if _settled(unit) else "its unit is not enabled"


def _settled(unit: Mapping[str, Any]) -> bool:
    return unit.get("ActiveState") == "active" and unit.get("UnitFileState") == "enabled"


def _to_stop(spec: Spec, facts: Facts) -> list[str]:
    """Units of deployments that the inventory has made inactive and that still run here."""
    running = facts.get("running_units", [])
    return [unit for name in spec.inactive if (unit := f"vllm@{name}.service") in running]


def _hardware(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    machines = [MACHINES[platform] for platform in spec.platforms]
    if facts["machine"] not in machines:
        yield Refusal(
            id="wrong-architecture",
            what=f"{spec.host} is {facts['machine']} and image {spec.recipe['image']['repository']} is for "
            f"{', '.join(spec.platforms)}",
            expected=" or ".join(machines),
            fix="name a recipe whose image.platforms has this machine's.",
            runbook="wrong-host",
        )
    if not facts["gpus"]:
        yield Refusal(
            id="no-gpu",
            what=f"nvidia-smi shows no GPU on {spec.host}: {facts['gpu_error'] or 'an empty list'}",
            expected="one GB10",
            fix="check the driver with nvidia-smi; after an update of DGX OS, reboot.",
            runbook="wrong-host",
        )


def _docker(facts: Facts) -> Iterator[Refusal]:
    docker = facts["docker"]
    if not docker["version"]:
        yield Refusal(
            id="no-docker",
            what=f"no Docker engine answers on this box: {docker['error']}",
            expected="the one that DGX OS ships",
            fix="sudo apt-get install docker.io nvidia-container-toolkit, then sudo systemctl enable --now docker.",
            runbook="docker-missing",
        )
    elif docker["missing_python"]:
        yield Refusal(
            id="no-requests",
            what=f"this box's Python has no module {docker['missing_python']}",
            expected="it, because community.docker pulls images through it",
            fix=f"sudo apt-get install python3-{docker['missing_python']}.",
            runbook="docker-missing",
        )


def _model(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    for folder in model_folders(spec):
        if not facts["paths"].get(folder):
            yield Refusal(
                id="no-model",
                what=f"{folder} does not exist or is empty",
                expected="the model's files at its pinned commit",
                fix=f"sudo hf download {_repository(spec, folder)} --cache-dir {spec.site.hub_dir}, "
                "or set vllm_hub_dir to where they are.",
                runbook="model-missing",
            )
    for mount in spec.recipe.get("mounts", []):
        source = launch.mount_source(spec, mount)
        if mount["from"] == "model" and facts["checksums"].get(source) != mount["sha256"]:
            yield Refusal(
                id="wrong-checksum",
                what=f"{source} has sha256 {facts['checksums'].get(source) or 'none: it does not exist'}",
                expected=f"{mount['sha256']}, which recipe {spec.recipe['name']} was tried with",
                fix="fetch the file again at the pinned commit; if it changed on purpose, the recipe needs a new look.",
                runbook="model-missing",
            )


def _repository(spec: Spec, folder: str) -> str:
    source = spec.recipe["model"] if folder == model_folders(spec)[0] else spec.recipe["drafter"]
    return f"{source['repository']} --revision {source['revision']}"


def _port(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    port = spec.deployment.port
    holder = facts["ports"].get(str(port))
    ours = {spec.deployment.container, *(f"vllm-{name}" for name in spec.inactive)}
    if holder and holder.get("container") not in ours and holder.get("unit") != spec.deployment.unit:
        yield Refusal(
            id="port-taken",
            what=f"port {port} of {spec.host} is held by {_named(holder)}",
            expected=f"it free for {spec.deployment.name}",
            fix=f"stop that process, or give {spec.deployment.name} another `port`.",
            runbook="port-taken",
        )


def _named(holder: Mapping[str, Any]) -> str:
    where = holder.get("container") and f", container {holder['container']}"
    where = where or (holder.get("unit") and f", unit {holder['unit']}") or ""
    return f"{holder['process']} (pid {holder['pid']}{where})"


def _strangers(spec: Spec, facts: Facts) -> Iterator[Refusal]:
    known = {spec.deployment.unit, *(f"vllm@{name}.service" for name in spec.inactive)}
    for unit in facts.get("running_units", []):
        if unit not in known:
            yield Refusal(
                id="unknown-deployment",
                what=f"{unit} runs on {spec.host} and is not in vllm_deployments",
                expected="no model server that the inventory does not know, because memory holds one",
                fix=f"add it with `active: false`, or: ssh {spec.host} sudo systemctl disable --now {unit}.",
                runbook="inventory-refused",
            )
