"""Plan of one host: files, actions and refusals from its spec and its facts. Pure, without I/O and Ansible.

Facts are what plugins/modules/spark_facts.py returns for the arguments from `questions`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_spark.core.host_file import File
from vllm_spark.core.ports import LOOPBACK
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document, Facts
from vllm_spark.deploy import (
    budgets,
    checks,
    closed_engine,
    exclusion,
    files,
    firewall,
    images,
    launch,
    link_key,
    ranks,
    unit_state,
)
from vllm_spark.deploy.checks import model_folders, refusals
from vllm_spark.deploy.firewall import FirewallSteps
from vllm_spark.deploy.hand_edit import OnHost
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.deploy.images import ImageSteps
from vllm_spark.edge import lifetime, ports, version
from vllm_spark.edge import steps as edge_steps
from vllm_spark.edge.steps import EdgePlan
from vllm_spark.inventory.intent import HostIntent, ranks_of
from vllm_spark.inventory.spec import ENGINE_KEY, Spec
from vllm_spark.node import launch_difference
from vllm_spark.node.host_layout import CONFIG_DIR, EDGE_GROUP, EDGE_UNIT
from vllm_spark.recipe import known_issues
from vllm_spark.verify import runner

# The refusal of a worker whose head reports the reason.
REFUSED_WITH_HEAD = register("refused-with-head", runbook="pair-does-not-start")


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that deploy makes on one host. `has_rank`: a deployment is active there. Without one the plan only
    stops units, and may have an edge."""

    has_rank: bool = True

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
    on_host: OnHost = field(default_factory=OnHost)  # the launch that the host has
    unedit: bool = False  # the launch that is kept was edited by hand and never ran so: it is kept as it was deployed
    proven: bool = False  # the last entry of the history is of this launch, and all of its gates passed
    stop_units: Sequence[str] = ()
    make_room: Sequence[str] = ()  # units of neighbours that stop before this one starts, until their own turn
    state: str = "started"  # restarted or started; started changes nothing if the unit runs already
    settled: bool = True  # the unit is enabled and active, so there is nothing to start
    reload: bool = False  # an interrupted run has left unit files that systemd has not read
    reason: str = ""
    lent: str = ""  # until when and by whom its memory is lent: it stays down; empty if it is not
    gates: Document = field(default_factory=dict)  # a GateRequest as JSON
    edge: EdgePlan = field(default_factory=EdgePlan)
    firewall: FirewallSteps = field(default_factory=FirewallSteps)

    @property
    def acts(self) -> bool:
        """Whether a deploy has a step before the gates: image, packages, firewall, files, or the state of a unit."""
        edge = self.edge.lacks_program or self.edge.state == edge_steps.ABSENT
        server = self.has_rank and not (self.installed and self.settled and not self.reload)
        return bool(self.images or edge or self.firewall.differs or self.stop_units or server)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "acts": self.acts}


def questions(intent: HostIntent) -> dict[str, Any] | None:
    """Return the arguments of the facts module: everything that a step needs, in one round trip. None for a host about
    which there is nothing to ask: it never had a deployment and has no edge."""
    inactive = [f"vllm@{name}.service" for name in intent.inactive]
    if intent.rank:
        return _questions_of_rank(intent.rank, inactive)
    if intent.edge:
        return {"units": inactive, "edge": True, "table": True, "ports": list(ports.ports(intent.edge))}
    return {"units": inactive} if inactive else None


def _questions_of_rank(spec: Spec, inactive: Sequence[str]) -> dict[str, Any]:
    unit, timer = spec.deployment.unit, spec.deployment.timer
    return {
        **checks.questions(spec),
        "images": images.questions(spec),
        "units": [unit, *([] if spec.rank else [timer]), *inactive, *([EDGE_UNIT] if spec.open else [])],
        "fabric": len(spec.deployment.hosts) > 1,
        "records": {name: f"{CONFIG_DIR}/{name}/deployed.json" for name in (spec.deployment.name, *spec.beside)},
        "env_path": f"{spec.config_dir}/env",
        **({"edge": True} if spec.edge.is_wanted else {}),
        "table": True,
        "folders": _folders(spec),
    }


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a plan is made for. `awaited`: ids of refusals that a pull resolves. `acts`: the verb carries the plan
    out; the lines of other verbs are conditional."""

    awaited: Collection[str] = ()
    acts: bool = False


def of_host(
    intents: Mapping[str, HostIntent], facts: Mapping[str, Facts], host: str, toolkit: str, purpose: Purpose = Purpose()
) -> tuple[Plan, list[str]]:
    """Return the plan of one host, and the lines that an operator should read. `intents` and `facts` hold every host of
    its deployment. Raises RefusedError with every reason of this host. The head reports the faults of a pair as a
    pair."""
    intent = intents[host]
    if not intent.rank:
        return _without_rank(intent, facts[host], purpose)
    hosts = budgets.shared({name: HostContext(name, one, facts[name]) for name, one in ranks_of(intents).items()})
    own = hosts[host]
    # What is lent does not start now.
    awaited = {*purpose.awaited, *(["too-little-memory"] if own.lent else [])}
    refused = [refusal for refusal in refusals(own) if refusal.id not in awaited]
    try:
        ranked = ranks.joined(hosts)
    except RefusedError as error:
        head = intent.rank.deployment.hosts[0]
        refused += error.refusals if host == head else [_refused_with(head, intent.rank)]
        raise RefusedError(refused) from error
    if refused:
        raise RefusedError(refused)
    others = [ranked[name] for name in intent.rank.deployment.hosts if name != host]
    plan = build(ranked[host], toolkit, others)
    lines = summary(ranked[host].spec, plan, acts=purpose.acts)
    lines += () if plan.settled and purpose.acts else budgets.table(own)
    lines += firewall.lines(plan.firewall, intent, own.host_facts.get("firewall"), acts=purpose.acts)
    # A deploy renews a certificate instead.
    lines += () if purpose.acts else filter(None, [lifetime.warning(own.facts)])
    # A deploy that changes nothing repeats no notes: precheck and plan show them.
    return plan, lines if plan.settled and purpose.acts else [*lines, *ranks.notes(hosts, host)]


def _without_rank(intent: HostIntent, facts: Facts, purpose: Purpose) -> tuple[Plan, list[str]]:
    """Return the plan of a host without an active deployment. Deployments that the inventory has made inactive stop.
    Units that the inventory does not know are left alone. Raises RefusedError if the edge cannot have its ports.

    Its files are vllm-switch with its modules, which the verb switch runs on a host that only stops. deploy places no
    file there.
    """
    if intent.edge and (refused := list(ports.refusals(intent.edge, facts))):
        raise RefusedError(refused)
    stop = [unit for unit in facts["units"] if unit_state.occupies(unit, facts)]
    plan = Plan(
        has_rank=False,
        folders=files.module_folders(),
        files=list(files.switch_program()),
        stop_units=stop,
        edge=edge_steps.foreseen(intent.edge, facts, has_rank=False),
        firewall=firewall.steps(intent, facts),
    )
    lines = [f"{unit} {_future(purpose.acts)} stopped: no deployment is active here" for unit in stop]
    lines += firewall.lines(plan.firewall, intent, facts.get("host", {}).get("firewall"), acts=purpose.acts)
    if intent.edge:
        lines += [edge_steps.forwards_line(intent.edge), *edge_steps.site_lines(intent.edge)]
    lines += () if purpose.acts else filter(None, [lifetime.warning(facts)])
    return plan, [*lines, *version.warnings(facts.get("edge"))]


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


def build(host: HostContext, toolkit: str, others: Sequence[HostContext] = ()) -> Plan:
    """Return the plan of a host that nothing refuses. `toolkit` is the version and commit of this checkout, `others`
    are the other hosts of the deployment in the order of their ranks."""
    spec, facts, record = host.spec, host.facts, host.record
    intent, judged = HostIntent.of_rank(spec), facts.get("judged", {}).get(spec.deployment.name)
    fingerprint = launch.fingerprint(spec)
    unit = unit_state.steps(host, fingerprint)
    good = judged is not None and record.get("launch", "") in judged["held"]
    deployed = files.new_record(spec, record, fingerprint, toolkit, keeps_old=good)
    drop_ins = exclusion.drop_ins(spec, facts.get("placed", []))
    gate_request = runner.gate_request(spec, fingerprint).to_json()
    changes = bool(record) and record.get("launch") != fingerprint
    if any(one.record.get("toolkit") != deployed["toolkit"] for one in others):
        # The supervisors of a pair that was deployed by two toolkits refuse to start it.
        deployed["toolkit"] = toolkit
    installs = files.files(spec, drop_ins, gate_request, deployed)
    renewed = link_key.is_renewed(spec, [one.facts.get("files", {}) for one in (host, *others)])
    folders = [*_folders(spec), *map(exclusion.drop_in_folder, drop_ins)]
    return Plan(
        unit=spec.deployment.unit,
        timer="" if spec.rank else spec.deployment.timer,
        container=spec.deployment.container,
        image=spec.image,
        images=images.steps(host, others, toolkit),
        folders=folders,
        files=installs,
        env_path=f"{spec.config_dir}/env",
        edge_group=EDGE_GROUP if closed_engine.is_closed(spec) else "",
        link_path=link_key.path(spec),
        link_head=spec.deployment.hosts[0] if renewed else "",
        installed=_is_installed(host, installs) and not renewed,
        keep_as=("previous" if good else "failed") if changes else "",
        undoable=bool(deployed["previous"]) and (changes or unit.reason == unit_state.LAUNCH_CHANGED),
        on_host=unit.on_host,
        unedit=unit.on_host.edited and not unit.on_host.ran,
        proven=bool(judged and judged["holds"] and judged["launch"] == fingerprint),
        stop_units=unit.stop,
        make_room=[] if unit.settled else [f"vllm@{name}.service" for name in budgets.larger(host)],
        state=unit.state,
        settled=unit.settled,
        reload=any(one.get("NeedDaemonReload") == "yes" for one in facts["units"].values()),
        reason=unit.reason,
        lent=host.lent,
        gates=gate_request,
        edge=edge_steps.foreseen(intent.edge, facts, has_rank=True),
        firewall=firewall.steps(intent, facts),
    )


def _folders(spec: Spec) -> list[str]:
    """Return the folders of every rank."""
    config = spec.config_dir
    pair = files.supervisor_folders() if len(spec.deployment.hosts) > 1 else []
    programs = [*files.module_folders(), *pair]
    return [config, f"{config}/mounts", *programs, f"{spec.site.cache_dir}/{spec.deployment.name}"]


def _is_installed(host: HostContext, planned: Sequence[File]) -> bool:
    """Return True if vllm_files would write nothing. A file outside of the folders has its folder too."""
    env, present = host.facts.get("env"), host.facts.get("files", {})
    folders = set(_folders(host.spec)) <= set(host.facts.get("folders", ()))
    return folders and env is not None and env["same"] and not any(file.differs(present) for file in planned)


def _future(acts: bool) -> str:
    return "will be" if acts else "would be"


def summary(spec: Spec, plan: Plan, *, acts: bool = False) -> list[str]:
    """Return the lines that an operator reads before anything changes: what happens here and why, and open issues. A
    verb that does not act speaks in the conditional."""
    action = "stays" if plan.settled else f"{_future(acts)} {plan.state}"
    where = f"rank {spec.rank} of {spec.deployment.hosts[0]}" if spec.rank else f"on port {spec.deployment.port}"
    of_launch = plan.reason == unit_state.LAUNCH_CHANGED and plan.on_host.changes
    reason = f"{plan.reason}: {of_launch}" if of_launch else plan.reason
    lines = [f"{spec.recipe['name']} {where}: {plan.unit} {action}, {reason}", *_of_launch(plan, acts=acts)]
    lines += plan.images.lines(spec, acts=acts)
    lines += [f"{unit} {_future(acts)} stopped: {spec.deployment.name} takes its place" for unit in plan.stop_units]
    lines += [
        f"{unit} {_future(acts)} stopped until its own turn: it has more than its budget" for unit in plan.make_room
    ]
    lines += unit_state.ended_elsewhere(spec, plan.stop_units)
    if plan.settled and acts:
        return lines
    if spec.rank == 0:
        lines += known_issues.notes(spec.issue_subject, spec.accepted)
        lines += closed_engine.unknown(spec)
        lines += _who_may_use_it(spec)
    if spec.edge.only_forwards:
        lines.append(edge_steps.forwards_line(spec.edge))
    return [*lines, *edge_steps.site_lines(spec.edge)]


def _of_launch(plan: Plan, *, acts: bool) -> Iterator[str]:
    """Yield a line about an edit by hand, and one about what a server that stays does not read."""
    found = plan.on_host
    if found.edited:
        change = found.changes or launch_difference.SAME
        yield f"its launch was edited by hand, and {_future(acts)} put back: {change}"
    elif found.next_start and plan.settled:
        yield f"{'takes' if acts else 'would take'} effect at the next start: {found.next_start}"


def _who_may_use_it(spec: Spec) -> Iterator[str]:
    """Yield lines about the clients of a deployment's API."""
    if not spec.open:
        yield f"clients reach it through the edge: {edge_steps.where(spec.edge)}, with a key"
        if ENGINE_KEY in spec.unused_secrets:
            yield f"{ENGINE_KEY} of vllm_secrets is not used: the edge has a key for each person (vllm-spark key add)"
    elif spec.issue_subject.bind != LOOPBACK and not spec.has_engine_key:
        yield f"every client that reaches port {spec.deployment.port} may use it: vllm_secrets has no {ENGINE_KEY}"
