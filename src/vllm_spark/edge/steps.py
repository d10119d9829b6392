"""What a deploy does about the edge of one host. Pure: an edge, the host's facts and certificates in, steps out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from vllm_spark.core import paths, templates
from vllm_spark.core.host_file import File
from vllm_spark.core.types import EdgeFacts, Facts
from vllm_spark.edge import authority, config, switch_request
from vllm_spark.inventory.edge import FILES, OFF, OWN_CA
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.node import host_layout

PRESENT, ABSENT = "present", "absent"
FILE_MODE, UNIT_MODE = "0640", "0644"
# The units of every edge: both stages, what warns before the certificate ends, and what counts the tokens of the day ->
# their arguments of the module vllm_edge.
UNITS = {
    host_layout.EDGE_UNIT_FILE: "unit",
    host_layout.EDGE_ROUTE_UNIT_FILE: "route_unit",
    host_layout.EDGE_END_UNIT_FILE: "end_unit",
    host_layout.EDGE_END_TIMER_FILE: "end_timer",
    host_layout.EDGE_QUOTA_UNIT_FILE: "quota_unit",
    host_layout.EDGE_QUOTA_TIMER_FILE: "quota_timer",
}
# The files of every edge -> those arguments. Only one with certificates of the site's authority has their list.
ARGUMENTS = {
    host_layout.EDGE_CONFIG: "config",
    host_layout.EDGE_ROUTE: "route",
    host_layout.EDGE_CERTIFICATE_LIST: "certificate_list",
    host_layout.EDGE_TOKENS: "tokens",
    host_layout.EDGE_QUOTA: "quota_program",
    **UNITS,
}
# The files of the program that starts models -> their arguments of the module vllm_edge.
SWITCH_ARGUMENTS = {
    host_layout.EDGE_SWITCH: "switch_program",
    host_layout.EDGE_SWITCH_LIST: "switch_list",
    host_layout.SWITCH_ROOT_SOCKET_FILE: "switch_root_socket",
    host_layout.SWITCH_ROOT_UNIT_FILE: "switch_root_unit",
    host_layout.EDGE_SWITCH_UNIT_FILE: "switch_unit",
}
# What an edge has only with some settings.
AT_TIMES = {*SWITCH_ARGUMENTS, host_layout.EDGE_CERTIFICATE_LIST}


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """What a plan has about the edge of a host. `runs`: both stages run. `lacks_program`: it needs HAProxy, which the
    host lacks. `judged_alone`: it has no engine of this host behind it, so no gates of a deployment judge it."""

    state: str = ""
    runs: bool = False
    lacks_program: bool = False
    judged_alone: bool = False


@dataclass(frozen=True, slots=True)
class EdgeSteps:
    """The changes of one host. `texts` and `switch` have arguments of the module: those that every edge has, and those
    of the program that starts models, none if requests may start nothing. `renewal` is why the host gets a new
    certificate, empty for none. `present`: the host has files of an edge. `edited`: those of them that are not as
    planned."""

    texts: Mapping[str, str]
    switch: Mapping[str, str] = field(default_factory=dict)
    renewal: str = ""
    first_key: bool = False
    differs: bool = False
    present: bool = False
    edited: Sequence[str] = ()

    @property
    def settled(self) -> bool:
        """True if nothing is to be done."""
        return not (self.differs or self.renewal or self.first_key)


def foreseen(edge: Edge | None, facts: Facts, *, has_rank: bool) -> EdgePlan:
    """Return the plan of an edge. `has_rank`: a deployment is active on its host."""
    if not edge:
        return EdgePlan()
    found, alone = facts.get("edge"), edge.only_forwards or not has_rank
    return EdgePlan(state(edge, facts), _runs(found), edge.is_wanted and not (found and found["program"]), alone)


def state(edge: Edge, facts: Facts) -> str:
    """Return PRESENT for a host with a closed edge, ABSENT for an open one whose edge still runs or would run after a
    boot, and nothing otherwise."""
    if edge.is_wanted:
        return PRESENT
    unit = facts.get("units", {}).get(host_layout.EDGE_UNIT, {})
    stays = unit.get("ActiveState") in host_layout.RUNNING or unit.get("UnitFileState") == "enabled"
    return ABSENT if edge.settings.open and stays else ""


def _runs(found: EdgeFacts | None) -> bool:
    return bool(found and all(unit.get("ActiveState") == "active" for unit in (found["unit"], found["route"])))


def steps(edge: Edge, found: EdgeFacts, address: str, trusted: str, now: datetime) -> EdgeSteps:
    """Return the steps of a host with a closed edge. `trusted` is the certificate of the site's authority, empty if
    there is none yet, or the owner's own certificate with its chain."""
    files = files_of(edge, address)
    if edge.settings.tls == OWN_CA and trusted:
        files.append(File(host_layout.EDGE_AUTHORITY, trusted, FILE_MODE))
    same = not _stale(files, found)
    stays = _runs(found) and found["unit"].get("UnitFileState") == "enabled"
    content = {file.path: file.content for file in files}
    if content.keys() & SWITCH_ARGUMENTS.keys():
        stays = stays and found["switch"].get("ActiveState") == "active"
    return EdgeSteps(
        texts={argument: content[path] for path, argument in ARGUMENTS.items() if path in content},
        switch={SWITCH_ARGUMENTS[path]: text for path, text in content.items() if path in SWITCH_ARGUMENTS},
        present=bool(found["files"]),
        edited=edited(edge, found, address),
        renewal=_renewal(edge, found, list(config.names(edge, address)), trusted, now),
        first_key=not found["keys"],
        differs=not (same and stays and found["account"])
        or any(unit.get("NeedDaemonReload") == "yes" for unit in (found["unit"], found["route"])),
    )


def edited(edge: Edge, found: EdgeFacts | None, address: str) -> list[str]:
    """Return the names of files that a deploy would put back or remove, on a host that has an edge. The certificates
    are not among them: what they should be is with the site's authority."""
    stale = _stale(files_of(edge, address), found) if found and found["files"] else []
    return [path.rpartition("/")[2] for path in stale]


def files_of(edge: Edge, address: str) -> list[File]:
    """Return the files of an edge but its certificates."""
    return [
        File(host_layout.EDGE_CONFIG, config.config(edge, address), FILE_MODE),
        File(host_layout.EDGE_ROUTE, config.route(edge), FILE_MODE),
        *_certificate_list(edge),
        File(host_layout.EDGE_TOKENS, tokens_file(), FILE_MODE),
        File(host_layout.EDGE_QUOTA, (paths.NODE / "edge_quota.py").read_text(encoding="utf-8"), "0755"),
        *(File(path, unit_file(path), UNIT_MODE) for path in UNITS),
        *switch_request.files(edge),
    ]


def _certificate_list(edge: Edge) -> list[File]:
    own = edge.settings.tls == OWN_CA
    return [File(host_layout.EDGE_CERTIFICATE_LIST, config.certificate_list(), FILE_MODE)] if own else []


def _stale(files: Sequence[File], found: EdgeFacts) -> list[str]:
    """Return the files that are not on the host as planned, and those that its settings no longer need."""
    present = found["files"]
    differ = [file.path for file in files if file.differs(present)]
    needless = (AT_TIMES & present.keys()) - {file.path for file in files}
    return [*differ, *sorted(needless)]


def unit_file(path: str = host_layout.EDGE_UNIT_FILE) -> str:
    """Return a unit of the edge, the same text on every host."""
    return templates.unchanged(path)


def tokens_file() -> str:
    """Return the program by which HAProxy reads the tokens of an answer, the same text on every host."""
    return templates.unchanged("edge-tokens.lua")


def lines(planned: EdgeSteps, edge: Edge, *, acts: bool) -> list[str]:
    """Return what an operator reads before the edge changes."""
    will = "will be" if acts else "would be"
    why = f"; not as planned: {', '.join(planned.edited)}" if planned.edited else ""
    does = "updated" if planned.present else "installed"
    shown = [f"the edge {will} {does}: {where(edge)}{why}"] if planned.differs else []
    shown += [f"the edge {will} given a new certificate: {planned.renewal}"] if planned.renewal else []
    return shown


def site_lines(edge: Edge) -> Iterator[str]:
    """Yield what an operator reads about the models of other Sparks behind the same address."""
    for one in edge.neighbours:
        names = dict.fromkeys(backend.models[0] for backend in one.backends)
        yield f"the edge asks {one.address}:{one.port} for {', '.join(names)} of {one.host}"
    yield from edge.left_out


def forwards_line(edge: Edge) -> str:
    """Return the line about an edge whose Spark serves no model."""
    return f"the edge here forwards: {where(edge)}, with a key"


def where(edge: Edge) -> str:
    """Return the protocol and the addresses of an edge."""
    return f"{edge.settings.scheme} on {', '.join(config.listeners(edge))}"


def _renewal(edge: Edge, found: Mapping[str, Any], names: Sequence[str], trusted: str, now: datetime) -> str:
    present = found["certificate"]
    if edge.settings.tls == OFF:
        return ""
    if not present:
        return "there is none"
    if edge.settings.tls == FILES:
        return "" if authority.same_certificates(present, trusted) else "vllm_edge.certificate has changed"
    if due := authority.renewal_reason(present, trusted, names, now, asks=edge.joins):
        return due
    if not (alone := found.get("names_certificate")):
        return "there is none of names alone, which clients built with Bun need"
    return authority.renewal_reason(alone, trusted, authority.without_addresses(names), now)
