"""Plan of one host: files, actions and refusals from its spec and its facts. Pure, without I/O and Ansible.

Facts are what plugins/modules/spark_facts.py returns for the arguments from `questions`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vllm_spark.core.host_file import File
from vllm_spark.core.host_layout import EDGE_GROUP, EDGE_UNIT
from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document, Facts
from vllm_spark.deploy import closed_engine, exclusion, files, firewall, images, launch, link_key, ranks, unit_state
from vllm_spark.deploy.firewall import FirewallSteps
from vllm_spark.deploy.images import ImageSteps
from vllm_spark.edge import front as front_edge
from vllm_spark.edge import steps as edge_steps
from vllm_spark.inventory.front import Front, only_forwards
from vllm_spark.inventory.spec import ENGINE_KEY, Spec
from vllm_spark.preflight import checks
from vllm_spark.preflight.checks import model_folders, refusals
from vllm_spark.recipe import known_issues
from vllm_spark.verify import runner

# The refusal of a worker whose head reports the reason.
REFUSED_WITH_HEAD = register("refused-with-head", runbook="pair-does-not-start")


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that deploy makes on one host."""

    unit: str = ""
    timer: str = ""  # empty on a worker, which has no API to probe
    container: str = ""
    image: str = ""
    images: ImageSteps = field(default_factory=ImageSteps)
    folders: Sequence[str] = ()
    files: Sequence[File] = ()
    env_path: str = ""
    edge_group: str = ""  # the group that reaches the socket of a closed engine; empty if the engine has none
    link_path: str = ""  # the key of a pair's link; empty for a deployment on one host
    link_head: str = ""  # the host that draws a new key for all; empty if they have one key
    installed: bool = False  # all folders and files are on the host as planned, and its env file too
    keep_as: str = ""  # the launch changes: the current one is kept as previous, or as failed if no gates held
    undoable: bool = False  # this run changes the launch and a good one is kept: it returns if a gate fails
    proven: bool = False  # the last entry of the history is of this launch, and all of its gates passed
    stop_units: Sequence[str] = ()
    state: str = "started"  # restarted or started; started changes nothing if the unit runs already
    settled: bool = True  # the unit is enabled and active, so there is nothing to start
    reload: bool = False  # an interrupted run has left unit files that systemd has not read
    reason: str = ""
    gates: Document = field(default_factory=dict)  # a GateRequest as JSON
    edge: str = ""  # edge.steps.state
    edge_runs: bool = False
    edge_program: bool = False  # the edge needs HAProxy, which the host lacks
    firewall: FirewallSteps = field(default_factory=FirewallSteps)
    front: bool = False  # the edge has no engine of this host behind it, so no gates of a deployment judge it
    idle: bool = False  # no deployment is active on the host: it only stops units, and may have an edge

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def questions(spec: Spec) -> dict[str, Any]:
    """Return the arguments of the facts module: everything that a step needs, in one round trip."""
    unit, timer = spec.deployment.unit, spec.deployment.timer
    inactive = [f"vllm@{name}.service" for name in spec.inactive]
    return {
        **checks.questions(spec),
        "images": images.questions(spec),
        "units": [unit, *([] if spec.rank else [timer]), *inactive, *([EDGE_UNIT] if spec.edge.open else [])],
        "fabric": len(spec.deployment.hosts) > 1,
        "records": {spec.deployment.name: f"{spec.config_dir}/deployed.json"},
        "env_path": f"{spec.config_dir}/env",
        **({"edge": True} if edge_steps.wanted(spec) else {}),
        "table": True,
        "folders": _folders(spec),
    }


def idle_questions(inactive: Sequence[str], front: Front | None = None) -> dict[str, Any] | None:
    """Return the arguments of the facts module for an idle host, or None if it never had a deployment. `front` is the
    edge of the host."""
    if front:
        return {"units": list(inactive), "edge": True, "table": True, "ports": list(front_edge.ports(front))}
    return {"units": list(inactive)} if inactive else None


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a plan is made for. `awaited`: ids of refusals that a pull resolves. `acts`: the verb carries the plan
    out; the lines of other verbs are conditional."""

    awaited: Collection[str] = ()
    acts: bool = False


def idle_plan(facts: Facts, front: Front | None = None, *, acts: bool = False) -> tuple[Plan, list[str]]:
    """Return the plan of a host without an active deployment, and the lines for the operator. Deployments that
    the inventory has made inactive stop. Units that the inventory does not know are left alone. `acts`: the
    verb stops them. `front` is the edge of the host. Raises RefusedError if that cannot have its ports.

    Its files are vllm-switch with its modules, which the verb switch runs on a host that only stops. deploy places no
    file there.
    """
    stop = [unit for unit in facts["units"] if unit_state.occupies(unit, facts)]
    lines = [f"{unit} {_future(acts)} stopped: no deployment is active here" for unit in stop]
    programs = list(files.switch_program())
    plan = Plan(idle=True, folders=files.module_folders(), files=programs, stop_units=stop)
    if not front:
        return plan, lines
    if refused := list(front_edge.refusals(front, facts)):
        raise RefusedError(refused)
    plan = replace(
        plan,
        edge=edge_steps.state(front, facts),
        edge_runs=edge_steps.runs(facts),
        edge_program=edge_steps.lacks_program(front, facts),
        firewall=firewall.steps(front, facts),
        front=True,
    )
    lines += firewall.lines(plan.firewall, front, facts, acts=acts)
    return plan, [*lines, *front_edge.lines(front)]


def of_host(
    specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str, toolkit: str, purpose: Purpose = Purpose()
) -> tuple[Plan, list[str]]:
    """Return the plan of one host of a deployment, and the lines that an operator should read. `specs` and `facts` hold
    every host of the deployment. Raises RefusedError with every reason of this host. The head reports the faults of a
    pair as a pair."""
    refused = [refusal for refusal in refusals(specs[host], facts[host]) if refusal.id not in purpose.awaited]
    try:
        ranked = ranks.join(specs, facts)
    except RefusedError as error:
        head = specs[host].deployment.hosts[0]
        refused += error.refusals if host == head else [_refused_with(head, specs[host])]
        raise RefusedError(refused) from error
    if refused:
        raise RefusedError(refused)
    peers = [facts[name] for name in specs if name != host]
    plan = build(ranked[host], facts[host], toolkit, peers)
    lines = summary(ranked[host], plan, acts=purpose.acts)
    lines += firewall.lines(plan.firewall, specs[host], facts[host], acts=purpose.acts)
    # A deploy that changes nothing repeats no notes: precheck and plan show them.
    return plan, lines if plan.settled and purpose.acts else [*lines, *ranks.notes(specs, facts, host)]


def ids_fixed_by_pull(spec: Spec, facts: Facts) -> Collection[str]:
    """Return the ids of refusals that a pull of the model resolves."""
    absent = not all(facts["paths"].get(folder) for folder in model_folders(spec))
    return ("no-model", "wrong-checksum") if absent else ()


def _refused_with(head: str, spec: Spec) -> Refusal:
    return REFUSED_WITH_HEAD(
        what=f"{spec.deployment.name}: the pair check failed on {head}",
        expected=f"no errors on {head}",
        fix=f"see the errors of {head} above.",
    )


def build(spec: Spec, facts: Facts, toolkit: str, peers: Sequence[Facts] = ()) -> Plan:
    """Return the plan of a host that nothing refuses. `toolkit` is the version and commit of this checkout; `peers` are
    the facts of the other hosts of the deployment."""
    record = files.old_record(spec, facts)
    fingerprint = launch.fingerprint(spec)
    state, reason = unit_state.next_state(spec, facts, fingerprint)
    good = files.once_held(spec, facts, record.get("launch", ""))
    deployed = files.new_record(spec, record, fingerprint, toolkit, keeps_old=good)
    excluded = exclusion.excluded_units(spec, facts)
    gate_request = runner.gate_request(spec, fingerprint).to_json()
    changes = bool(record) and record.get("launch") != fingerprint
    if any(files.old_record(spec, peer).get("toolkit") != deployed["toolkit"] for peer in peers):
        # The supervisors of a pair that was deployed by two toolkits refuse to start it.
        deployed["toolkit"] = toolkit
    installs = files.files(spec, excluded, gate_request, deployed)
    renewed = link_key.is_renewed(spec, [facts, *peers])
    folders = [*_folders(spec), *([exclusion.drop_in_folder(spec.deployment.name)] if excluded else [])]
    return Plan(
        unit=spec.deployment.unit,
        timer="" if spec.rank else spec.deployment.timer,
        container=spec.deployment.container,
        image=spec.image,
        images=images.steps(spec, facts, peers, toolkit),
        folders=folders,
        files=installs,
        env_path=f"{spec.config_dir}/env",
        edge_group=EDGE_GROUP if closed_engine.is_closed(spec) else "",
        link_path=link_key.path(spec),
        link_head=spec.deployment.hosts[0] if renewed else "",
        installed=_is_installed(spec, installs, facts) and not renewed,
        keep_as=("previous" if good else "failed") if changes else "",
        undoable=bool(deployed["previous"]) and (changes or reason == unit_state.LAUNCH_CHANGED),
        proven=_is_proven(spec, facts, fingerprint),
        stop_units=unit_state.units_to_stop(spec, facts),
        state=state,
        settled=state == "started" and unit_state.settled(spec, facts),
        reload=any(unit.get("NeedDaemonReload") == "yes" for unit in facts["units"].values()),
        reason=reason,
        gates=gate_request,
        edge=edge_steps.state(spec, facts),
        edge_runs=edge_steps.runs(facts),
        edge_program=edge_steps.lacks_program(spec, facts),
        firewall=firewall.steps(spec, facts),
        front=only_forwards(spec),
    )


def _folders(spec: Spec) -> list[str]:
    """Return the folders of every rank."""
    config = spec.config_dir
    pair = files.supervisor_folders() if len(spec.deployment.hosts) > 1 else []
    programs = [*files.module_folders(), *pair]
    return [config, f"{config}/mounts", *programs, f"{spec.site.cache_dir}/{spec.deployment.name}"]


def _is_installed(spec: Spec, planned: Sequence[File], facts: Facts) -> bool:
    """Return True if vllm_files would write nothing. A file outside of the folders has its folder too."""
    env = facts.get("env")
    present = facts.get("files", {})
    folders = set(_folders(spec)) <= set(facts.get("folders", ()))
    return folders and env is not None and env["same"] and not any(file.differs(present) for file in planned)


def _is_proven(spec: Spec, facts: Facts, fingerprint: str) -> bool:
    judged = facts.get("judged", {}).get(spec.deployment.name)
    return judged is not None and judged["holds"] and judged["launch"] == fingerprint


def _future(acts: bool) -> str:
    return "will be" if acts else "would be"


def summary(spec: Spec, plan: Plan, *, acts: bool = False) -> list[str]:
    """Return the lines that an operator reads before anything changes: what happens here and why, and open issues. A
    verb that does not act speaks in the conditional."""
    action = "stays" if plan.settled else f"{_future(acts)} {plan.state}"
    where = f"rank 1 of {spec.deployment.hosts[0]}" if spec.rank else f"on port {spec.deployment.port}"
    lines = [f"{spec.recipe['name']} {where}: {plan.unit} {action}, {plan.reason}"]
    lines += plan.images.lines(spec, acts=acts)
    lines += [f"{unit} {_future(acts)} stopped: {spec.deployment.name} takes its place" for unit in plan.stop_units]
    lines += unit_state.ended_elsewhere(spec, plan.stop_units)
    if plan.settled and acts:
        return lines
    if spec.rank == 0:
        lines += known_issues.notes(spec.issue_subject, spec.accepted)
        lines += closed_engine.unknown(spec)
        lines += _who_may_use_it(spec)
    if only_forwards(spec):
        lines.append(front_edge.headline(spec))
    return [*lines, *edge_steps.site_lines(spec)]


def _who_may_use_it(spec: Spec) -> Iterator[str]:
    """Yield lines about the clients of a deployment's API."""
    if not spec.edge.open:
        yield f"clients reach it through the edge: {edge_steps.where(spec)}, with a key"
        if ENGINE_KEY in spec.secrets:
            yield f"{ENGINE_KEY} of vllm_secrets is not used: the edge has a key for each person (vllm-spark key add)"
    elif spec.issue_subject.bind != LOOPBACK and not spec.has_engine_key:
        yield f"every client that reaches port {spec.deployment.port} may use it: vllm_secrets has no {ENGINE_KEY}"
