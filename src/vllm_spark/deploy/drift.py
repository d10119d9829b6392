"""Drift: what deploy would change on a host, computed from the plan of deploy. Pure.

The state of the host is facts.files and facts.status of plugins/modules/spark_facts.py: checksums of files, names of
variables, and the launch without its secrets. No value of a secret is read here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vllm_spark.core import host_layout
from vllm_spark.core.host_file import File
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.text import short_digest
from vllm_spark.core.types import Facts
from vllm_spark.deploy import plan, unit_state
from vllm_spark.deploy.plan import Plan
from vllm_spark.edge import steps as edge_steps
from vllm_spark.inventory.front import EdgeOwner, Front
from vllm_spark.inventory.spec import Spec

# A launch has some forty lines; one of another recipe differs in most of them.
DIFF_LINES = 40


@dataclass(frozen=True, slots=True)
class Drift:
    """Differences between a host and its plan. `differs` is None if unknown; the first of `reasons` has the cause.
    `launch_diff` are lines of a unified diff from the launch on the host to the one that deploy would install, and
    `launch` is the fingerprint of that one, empty if it is unknown."""

    differs: bool | None
    reasons: tuple[str, ...] = ()
    launch_diff: tuple[str, ...] = ()
    launch: str = field(default="", compare=False)

    def summary(self, most: int = 2) -> str:
        """Return `none`, or the first reasons."""
        if self.differs is False:
            return "none"
        more = len(self.reasons) - most
        return "; ".join([*self.reasons[:most], *([f"{more} more"] if more > 0 else [])])


def unknown(why: str) -> Drift:
    """Return the drift of a host that did not answer or has no resolvable desired state."""
    return Drift(None, (f"unknown: {why}",))


def of_host(specs: Mapping[str, Spec], facts: Mapping[str, Facts], host: str, toolkit: str, address: str = "") -> Drift:
    """Return the drift of the active deployment of a host. `specs` and `facts` hold every host of the deployment.
    `address` is that of the host in the inventory, which the files of its edge contain; without it they are not
    compared."""
    absent = [name for name in specs[host].deployment.hosts if name not in facts or name not in specs]
    if absent:
        return unknown(f"{', '.join(absent)} was not asked")
    try:
        planned, _ = plan.of_host(specs, facts, host, toolkit)
    except RefusedError as error:
        return _refused(error)
    reasons = (*_reasons(planned, facts[host]), *_around(planned, specs[host], facts[host], address))
    return Drift(bool(reasons), reasons, tuple(_launch_diff(planned, facts[host])), planned.gates["launch"])


def of_idle(facts: Facts, front: Front | None = None, address: str = "") -> Drift:
    """Return the drift of a host without an active deployment. `front` is its edge, `address` as in `of_host`."""
    try:
        planned = plan.idle_plan(facts, front)[0]
    except RefusedError as error:
        return _refused(error)
    reasons = tuple(_around(planned, front, facts, address))
    return Drift(bool(reasons), reasons)


def _refused(error: RefusedError) -> Drift:
    return Drift(True, (f"deploy refuses: {', '.join(refusal.id for refusal in error.refusals)}",))


def _around(planned: Plan, owner: EdgeOwner | None, facts: Facts, address: str) -> Iterator[str]:
    """Yield the reasons outside of the active deployment: the firewall table, the edge, other deployments."""
    if planned.firewall.differs:
        yield "the firewall table would be loaded"
    if planned.edge == edge_steps.PRESENT and owner and address:
        yield from (f"edge: {name} is not as planned" for name in edge_steps.edited(owner, facts, address))
    if planned.edge and (planned.edge == edge_steps.ABSENT or not planned.edge_runs):
        yield f"{host_layout.EDGE_UNIT} would be {'stopped' if planned.edge == edge_steps.ABSENT else 'started'}"
    yield from (f"{unit} would be stopped" for unit in planned.stop_units)


def _reasons(planned: Plan, facts: Facts) -> Iterator[str]:
    container = facts["docker"]["containers"].get(planned.container)
    if container and container["image"] != planned.image:
        yield f"image {short_digest(container['image'])} becomes {short_digest(planned.image)}"
    if planned.images:
        yield f"image {short_digest(planned.image)} would be fetched or built"
    present = facts.get("files", {})
    changed = [file for file in planned.files if file.differs(present)]
    yield from _files(planned, changed)
    env = facts.get("env")
    if env and not env["same"]:
        yield f"env: {unit_state.env_change(env)}"
    if planned.link_head:
        yield "link.key: the Sparks of the pair do not have one key"
    if planned.reload:
        yield "systemd reloads its unit files"
    if not planned.settled:
        # The state is "restarted" or "started".
        yield f"{planned.unit} would be {planned.state}: {planned.reason}"


def _files(planned: Plan, changed: Iterable[File]) -> Iterator[str]:
    """Yield the launch, then the names of units, then those of other files."""
    names = [file.path for file in changed]
    launches = [name for name in names if name == _launch_path(planned)]
    units = [name.rpartition("/")[2] for name in names if name.startswith(host_layout.UNIT_DIR)]
    others = dict.fromkeys(
        _short(name) for name in names if name not in launches and not name.startswith(host_layout.UNIT_DIR)
    )
    if launches:
        yield "launch"
    if units:
        yield f"units: {', '.join(units)}"
    if others:
        yield f"files: {', '.join(others)}"


def _short(path: str) -> str:
    """Return the name of a file. The modules of the supervisor have the name of its program."""
    return (host_layout.SUPERVISOR if path.startswith(f"{host_layout.SUPERVISOR_MODULES}/") else path).rpartition("/")[
        2
    ]


def _launch_path(planned: Plan) -> str:
    return f"{planned.env_path.rpartition('/')[0]}/launch"


def _launch_diff(planned: Plan, facts: Facts) -> Iterator[str]:
    """Yield the lines that differ, without context, and the number of further ones."""
    launch = next(file for file in planned.files if file.path == _launch_path(planned))
    if not launch.differs(facts.get("files", {})):
        return
    name = planned.unit.partition("@")[2].removesuffix(".service")
    deployment = facts["status"]["deployments"].get(name)
    on_disk = deployment["launch"] if deployment else None
    if not on_disk:
        # Nothing is deployed, so every line would be new.
        return
    diff = difflib.unified_diff(on_disk.splitlines(), launch.content.splitlines(), n=0, lineterm="")
    lines = [line for line in list(diff)[2:] if not line.startswith("@@")]
    yield from lines[:DIFF_LINES]
    if len(lines) > DIFF_LINES:
        yield f"… and {len(lines) - DIFF_LINES} lines more: deploy.yml --check --diff"
