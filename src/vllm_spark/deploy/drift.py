"""Drift: what deploy would change on a host, computed from the plan of deploy. Pure.

The state of the host is facts.files and facts.status of plugins/modules/spark_facts.py: checksums of files, names of
variables, and the launch without its secrets. No value of a secret is read here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vllm_spark.core.host_file import File
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.text import short_digest
from vllm_spark.core.types import Facts
from vllm_spark.deploy import plan, unit_state
from vllm_spark.deploy.plan import Plan
from vllm_spark.edge import steps as edge_steps
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.node import host_layout

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


def of_host(
    intents: Mapping[str, HostIntent], facts: Mapping[str, Facts], host: str, toolkit: str, address: str = ""
) -> Drift:
    """Return the drift of a host. `intents` and `facts` hold every host of its deployment. `address` is that of the
    host in the inventory, which the files of its edge contain; without it they are not compared."""
    intent, reported = intents[host], facts[host]
    if intent.rank and (
        absent := [name for name in intent.rank.deployment.hosts if name not in facts or name not in intents]
    ):
        return unknown(f"{', '.join(absent)} was not asked")
    try:
        planned, _ = plan.of_host(intents, facts, host, toolkit)
    except RefusedError as error:
        return Drift(True, (f"deploy refuses: {', '.join(refusal.id for refusal in error.refusals)}",))
    around = tuple(_around(planned, intent.edge, reported, address))
    if not planned.has_rank:
        return Drift(bool(around), around)
    reasons = (*_reasons(planned, reported), *around)
    return Drift(bool(reasons), reasons, tuple(_launch_diff(planned, reported)), planned.gates["launch"])


def _around(planned: Plan, edge: Edge | None, facts: Facts, address: str) -> Iterator[str]:
    """Yield the reasons outside of the active deployment: the firewall table, the edge, other deployments."""
    if planned.firewall.differs:
        yield "the firewall table would be loaded"
    state = planned.edge.state
    if state == edge_steps.PRESENT and edge and address:
        yield from (f"edge: {name} is not as planned" for name in edge_steps.edited(edge, facts.get("edge"), address))
    if state and (state == edge_steps.ABSENT or not planned.edge.runs):
        yield f"{host_layout.EDGE_UNIT} would be {'stopped' if state == edge_steps.ABSENT else 'started'}"
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
        yield "launch, edited by hand" if planned.on_host.edited else "launch"
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
    deployment = facts["status"]["deployments"].get(host_layout.deployment_of(planned.unit))
    on_disk = deployment["launch"] if deployment else None
    if not on_disk:
        # Nothing is deployed, so every line would be new.
        return
    diff = difflib.unified_diff(on_disk.splitlines(), launch.content.splitlines(), n=0, lineterm="")
    lines = [line for line in list(diff)[2:] if not line.startswith("@@")]
    yield from lines[:DIFF_LINES]
    if len(lines) > DIFF_LINES:
        yield f"… and {len(lines) - DIFF_LINES} lines more: ansible-playbook deploy.yml --check --diff"
