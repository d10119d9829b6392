"""Stage 2: spec and facts in; files, actions or refusals out. Pure: no I/O, no Ansible, golden-tested.

Facts are what plugins/modules/spark_facts.py returns for the questions of `questions`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.core import host_layout, paths
from vllm_spark.core.host_layout import LIVENESS, PROGRAM_DIR, UNIT_DIR, UNIT_FILE
from vllm_spark.core.platforms import MACHINES
from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Facts
from vllm_spark.deploy import exclusion, images, launch, ranks
from vllm_spark.inventory import spec as inventory_spec
from vllm_spark.inventory.spec import Spec
from vllm_spark.preflight import checks
from vllm_spark.preflight.checks import model_folders, refusals
from vllm_spark.recipe import known_issues
from vllm_spark.verify import runner
from vllm_spark.verify.gate_request import GateRequest

# The id of what a worker says where its head says why.
REFUSED_WITH_HEAD = register("refused-with-head", runbook="pair-does-not-start")

LAUNCH_CHANGED = "its launch changed"


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
    timer: str  # empty on a worker, which has no API to ask
    container: str
    image: str
    base: str  # what is pulled where `pull` says so; the image itself unless it is derived
    platform: str
    pull: bool
    build: Mapping[str, Any]
    transfer: Mapping[str, Any]
    folders: Sequence[str]
    files: Sequence[File]
    env_path: str
    keep_previous: bool
    undoable: bool  # this run changes the launch and the box has the one before: it comes back if a gate does not hold
    stop_units: Sequence[str]
    state: str  # restarted or started; started is idle where the unit runs already
    settled: bool  # the unit is enabled and active, so there is nothing to start
    reload: bool  # a run that was cut off has left unit files that systemd has not read
    reason: str
    gates: GateRequest

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def questions(spec: Spec) -> dict[str, Any]:
    """What the facts module is asked: everything in one round trip, nothing that no step needs."""
    unit, timer = spec.deployment.unit, spec.deployment.timer
    return {
        **checks.questions(spec),
        "images": images.questions(spec),
        "units": [unit, *([] if spec.rank else [timer]), *(f"vllm@{name}.service" for name in spec.inactive)],
        "fabric": len(spec.deployment.hosts) > 1,
        "records": {spec.deployment.name: f"{spec.config_dir}/deployed.json"},
    }


def idle_questions(inactive: Sequence[str]) -> dict[str, Any] | None:
    """What is asked of a Spark that shall be idle; nothing where it never had a deployment."""
    return {"units": list(inactive)} if inactive else None


def idle_plan(facts: Facts) -> tuple[dict[str, Any], list[str]]:
    """(the plan of a Spark that shall be idle, what an operator should know of it): what the inventory has made
    inactive stops, what it does not know stays."""
    stop = [unit for unit in facts["units"] if _occupies(unit, facts)]
    return {"idle": True, "stop_units": stop}, [f"{unit} stops: no deployment is active here" for unit in stop]


def of_host(
    specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str, toolkit: str, awaited: Collection[str] = ()
) -> tuple[Plan, list[str]]:
    """(the plan of one host of a deployment, what an operator should know of it). `specs` and `facts` are by host, of
    all hosts of the deployment. Raises RefusedError with every reason of this host but those whose ids are `awaited`;
    what is wrong with a pair as a pair is said once, at its head."""
    refused = [refusal for refusal in refusals(specs[host], facts[host]) if refusal.id not in awaited]
    try:
        ranked = ranks.join(specs, facts)
    except RefusedError as error:
        head = specs[host].deployment.hosts[0]
        refused += error.refusals if host == head else [_refused_with(head, specs[host])]
        raise RefusedError(refused) from error
    if refused:
        raise RefusedError(refused)
    peers = [facts[name] for name in specs if name != host]
    made = build(ranked[host], facts[host], toolkit, peers)
    return made, [*summary(ranked[host], made), *ranks.notes(specs, facts, host)]


def ids_fixed_by_pull(spec: Spec, facts: Facts) -> Collection[str]:
    """The ids of refusals that fetching the model takes away."""
    absent = not all(facts["paths"].get(folder) for folder in model_folders(spec))
    return ("no-model", "wrong-checksum") if absent else ()


def _refused_with(head: str, spec: Spec) -> Refusal:
    return REFUSED_WITH_HEAD(
        what=f"{spec.deployment.name}: the pair check failed on {head}",
        expected=f"no errors on {head}",
        fix=f"see the errors of {head} above.",
    )


def build(spec: Spec, facts: Facts, toolkit: str, peers: Sequence[Facts] = ()) -> Plan:
    """The plan for a box that nothing refuses. `toolkit` is this checkout's version and commit; `peers` are the facts
    of the deployment's other hosts."""
    record = _old_record(spec, facts)
    fingerprint = launch.fingerprint(spec)
    running = _running(facts, spec.deployment.container)
    state, reason = _state(spec, facts, fingerprint, running)
    config = spec.config_dir
    deployed = _record(spec, record, fingerprint, toolkit)
    excluded = exclusion.excluded_units(spec, facts)
    gate_request = runner.gate_request(spec, fingerprint)
    changes = bool(record) and record.get("launch") != fingerprint
    if any(_old_record(spec, peer).get("toolkit") != deployed["toolkit"] for peer in peers):
        # The supervisors of a pair that was deployed by two toolkits refuse to start it.
        deployed["toolkit"] = toolkit
    return Plan(
        unit=spec.deployment.unit,
        timer="" if spec.rank else spec.deployment.timer,
        container=spec.deployment.container,
        image=spec.image,
        base=spec.base,
        platform=next(p for p in spec.platforms if MACHINES[p] == facts["machine"]),
        **asdict(images.steps(spec, facts, peers, toolkit)),
        folders=[
            config,
            f"{config}/mounts",
            PROGRAM_DIR,
            f"{spec.site.cache_dir}/{spec.deployment.name}",
            *([exclusion.drop_in_folder(spec.deployment.name)] if excluded else []),
        ],
        files=[
            *(_mounted_files(spec)),
            File(f"{config}/launch", launch.script(spec), "0755", syntax="sh"),
            File(f"{config}/gates.json", _json(gate_request.to_json())),
            File(f"{config}/deployed.json", _json(deployed)),
            *_exclusion(spec, excluded),
            *_programs(spec),
        ],
        env_path=f"{config}/env",
        keep_previous=changes,
        undoable=changes or (reason == LAUNCH_CHANGED and bool(record.get("previous"))),
        stop_units=_to_stop(spec, facts),
        state=state,
        settled=state == "started" and _settled(spec, facts),
        reload=any(unit.get("NeedDaemonReload") == "yes" for unit in facts["units"].values()),
        reason=reason,
        gates=gate_request,
    )


def summary(spec: Spec, plan: Plan) -> list[str]:
    """What an operator should know before anything happens: what runs here and why, and what stands open."""
    act = "stays" if plan.settled else plan.state
    where = f"rank 1 of {spec.deployment.hosts[0]}" if spec.rank else f"on port {spec.deployment.port}"
    lines = [f"{spec.recipe['name']} {where}: {plan.unit} {act}, {plan.reason}"]
    lines += images.ImageSteps(plan.pull, plan.build, plan.transfer).lines(spec)
    lines += [f"{unit} stops: {spec.deployment.name} takes its place" for unit in plan.stop_units]
    if spec.rank == 0:
        lines += known_issues.notes(
            known_issues.Subject(spec.recipe, spec.secrets, spec.deployment.bind), spec.accepted
        )
    if spec.rank == 0 and spec.deployment.bind != LOOPBACK and "VLLM_API_KEY" not in spec.secrets:
        lines.append(f"whoever reaches port {spec.deployment.port} may use it: vllm_secrets has no VLLM_API_KEY")
    return lines


def _old_record(spec: Spec, facts: Facts) -> Mapping[str, Any]:
    return facts["records"].get(spec.deployment.name) or {}


def _exclusion(spec: Spec, excluded: Sequence[str]) -> Iterator[File]:
    if excluded:
        folder = exclusion.drop_in_folder(spec.deployment.name)
        yield File(f"{folder}/{exclusion.DROP_IN}", exclusion.drop_in_text(spec.deployment.name, excluded))


def _programs(spec: Spec) -> Iterator[File]:
    """The units, and the programs that they run: the same text on every Spark. liveness.json comes last, because a
    Spark that has one is asked for tokens."""
    yield File(UNIT_FILE, launch.unit_file())
    yield File(host_layout.SWITCH_PROGRAM, exclusion.switch_program(), "0755")
    if spec.pair:
        yield File(host_layout.SUPERVISOR, (paths.NODE / "supervisor.py").read_text(encoding="utf-8"), "0755")
    if spec.rank == 0:
        yield File(LIVENESS, (paths.NODE / "liveness.py").read_text(encoding="utf-8"), "0755")
        for name in ("vllm-liveness@.service", "vllm-liveness@.timer"):
            yield File(f"{UNIT_DIR}/{name}", (paths.TEMPLATES / name).read_text(encoding="utf-8"))
        asked = {
            "address": spec.deployment.local_address,
            "port": spec.deployment.port,
            "model": spec.recipe["model"]["served_name"],
            "deadline_s": spec.recipe["gates"]["ready"]["deadline_s"],
        }
        yield File(f"{spec.config_dir}/liveness.json", _json(asked))


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _mounted_files(spec: Spec) -> Iterator[File]:
    for mount in spec.recipe.get("mounts", []):
        if mount["from"] == "toolkit":
            yield File(inventory_spec.mount_source(spec, mount), spec.files[mount["path"]])


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
        **({"derived": {"image": made.image, "inputs": made.inputs}} if (made := spec.derived) else {}),
        "engine": recipe["engine"]["version"],
        "model": f"{recipe['model']['repository']}@{recipe['model']['revision']}",
        "launch": fingerprint,
        "port": spec.deployment.port,
        "room": exclusion.memory_requirement(recipe),
        "accepted_known_issues": list(spec.accepted),
    }
    previous = old.get("previous") if same else {key: old[key] for key in sorted(old) if key != "previous"}
    return new | {"toolkit": old["toolkit"] if same else toolkit, "previous": previous or None}


def _running(facts: Facts, container: str) -> Mapping[str, Any] | None:
    found = facts["docker"].get("containers", {}).get(container)
    return found if found and found["state"] == "running" else None


def _state(spec: Spec, facts: Facts, fingerprint: str, running: Mapping[str, Any] | None) -> tuple[str, str]:
    """restarted or started, and why. The running container's own label decides, so that a run which was cut
    off between the file and the restart is finished by the next."""
    if running is None:
        if facts["units"].get(spec.deployment.unit, {}).get("ActiveState") != "active":
            return "started", "it is not running"
        # A supervisor that waits or refuses has read what it compares at its start, and may have read the old.
        told = facts.get("states", {}).get(spec.deployment.name, {}).get("state")
        return ("restarted", f"it is {told}") if told in {"waiting", "refused"} else ("started", "it is starting")
    if running["labels"].get("vllm-spark.launch") != fingerprint:
        return "restarted", LAUNCH_CHANGED
    if facts.get("env_mtimes", {}).get(spec.deployment.name, 0) > running["started"]:
        return "restarted", "its env file changed"
    return "started", "it runs as planned" if _settled(spec, facts) else "its unit is not enabled"


def _settled(spec: Spec, facts: Facts) -> bool:
    unit, timer = (facts["units"].get(name, {}) for name in (spec.deployment.unit, spec.deployment.timer))
    enabled = unit.get("ActiveState") == "active" and unit.get("UnitFileState") == "enabled"
    return enabled and (spec.rank > 0 or timer.get("ActiveState") == "active")


def _to_stop(spec: Spec, facts: Facts) -> list[str]:
    """Units of deployments that the inventory has made inactive and that still run here, or would at the next boot."""
    return [unit for name in spec.inactive if _occupies(unit := f"vllm@{name}.service", facts)]


def _occupies(unit: str, facts: Facts) -> bool:
    return unit in (*facts["running_units"], *facts["enabled_units"])
