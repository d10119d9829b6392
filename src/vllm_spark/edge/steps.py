"""What a deploy does about the edge of one host. Pure: a spec, the host's facts and certificates in, steps out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from vllm_spark.core import host_layout, paths
from vllm_spark.core.types import Facts
from vllm_spark.edge import authority, config, switch_request
from vllm_spark.inventory import edge
from vllm_spark.inventory.front import EdgeOwner

PRESENT, ABSENT = "present", "absent"
FILE_MODE, UNIT_MODE = "0640", "0644"
# The files of the program that starts models -> their arguments of the module vllm_edge.
SWITCH_ARGUMENTS = {
    host_layout.EDGE_SWITCH: "switch_program",
    host_layout.EDGE_SWITCH_LIST: "switch_list",
    host_layout.EDGE_SWITCH_UNIT_FILE: "switch_unit",
}


@dataclass(frozen=True, slots=True)
class EdgeSteps:
    """The changes of one host. `renewal` is why it gets a new certificate, empty for none. `switch` has the module's
    arguments about the program that starts models, none if requests may start nothing."""

    config: str
    tokens: str
    unit: str
    switch: Mapping[str, str] = field(default_factory=dict)
    renewal: str = ""
    first_key: bool = False
    differs: bool = False

    @property
    def settled(self) -> bool:
        """True if nothing is to be done."""
        return not (self.differs or self.renewal or self.first_key)


def state(spec: EdgeOwner, facts: Facts) -> str:
    """Return PRESENT for a host with a closed edge, ABSENT if an open engine needs the port of an edge that still runs,
    and nothing otherwise."""
    if wanted(spec):
        return PRESENT
    holders = facts.get("ports", {}).values()
    held = any(holder and holder.get("unit") == host_layout.EDGE_UNIT for holder in holders)
    return ABSENT if spec.edge.open and held else ""


def wanted(spec: EdgeOwner) -> bool:
    """Return True for a host that has a closed edge."""
    return bool(spec.backends or spec.neighbours)


def runs(facts: Facts) -> bool:
    """Return True if the facts have a running edge."""
    found = facts.get("edge")
    return bool(found and found["unit"].get("ActiveState") == "active")


def lacks_program(spec: EdgeOwner, facts: Facts) -> bool:
    """Return True for a host whose edge needs HAProxy first."""
    found = facts.get("edge")
    return wanted(spec) and not (found and found["program"])


def steps(spec: EdgeOwner, facts: Facts, address: str, trusted: str, now: datetime) -> EdgeSteps:
    """Return the steps of a host with a closed edge. `trusted` is the certificate of the site's authority, empty if
    there is none yet, or the owner's own certificate with its chain."""
    found = facts["edge"]
    text, tokens, unit = config.config(spec, address), tokens_file(), unit_file()
    files = {
        host_layout.EDGE_CONFIG: (text, FILE_MODE),
        host_layout.EDGE_TOKENS: (tokens, FILE_MODE),
        host_layout.EDGE_UNIT_FILE: (unit, UNIT_MODE),
    }
    if spec.edge.joins(spec.host) and trusted:
        files[host_layout.EDGE_AUTHORITY] = (trusted, FILE_MODE)
    switch = switch_request.files(spec)
    files |= switch
    same = all(list(found["files"].get(path, ())) == [_sha256(one), mode] for path, (one, mode) in files.items())
    stays = runs(facts) and found["unit"].get("UnitFileState") == "enabled"
    if switch:
        stays = stays and found["switch"].get("ActiveState") == "active"
    elif SWITCH_ARGUMENTS.keys() & found["files"].keys():
        same = False
    return EdgeSteps(
        config=text,
        tokens=tokens,
        unit=unit,
        switch={SWITCH_ARGUMENTS[path]: one for path, (one, _) in switch.items()},
        renewal=_renewal(spec, found["certificate"], list(config.names(spec, address)), trusted, now),
        first_key=not found["keys"],
        differs=not (same and stays and found["account"]) or found["unit"].get("NeedDaemonReload") == "yes",
    )


def unit_file() -> str:
    """Return the unit, the same text on every host."""
    return (paths.TEMPLATES / host_layout.EDGE_UNIT).read_text(encoding="utf-8")


def tokens_file() -> str:
    """Return the program by which HAProxy reads the tokens of an answer, the same text on every host."""
    return (paths.TEMPLATES / "edge-tokens.lua").read_text(encoding="utf-8")


def lines(planned: EdgeSteps, spec: EdgeOwner, *, acts: bool) -> list[str]:
    """Return what an operator reads before the edge changes."""
    will = "will be" if acts else "would be"
    said = [f"the edge {will} installed: {where(spec)}"] if planned.differs else []
    said += [f"the edge {will} given a new certificate: {planned.renewal}"] if planned.renewal else []
    return said


def site_lines(spec: EdgeOwner) -> Iterator[str]:
    """Yield what an operator reads about the models of other Sparks behind the same address."""
    for one in spec.neighbours:
        names = dict.fromkeys(backend.models[0] for backend in one.backends)
        yield f"the edge asks {one.address}:{one.port} for {', '.join(names)} of {one.host}"
    yield from spec.left_out


def where(spec: EdgeOwner) -> str:
    """Return the protocol and the addresses of an edge."""
    return f"{spec.edge.scheme} on {', '.join(config.listeners(spec))}"


def _renewal(spec: EdgeOwner, present: str, names: Sequence[str], trusted: str, now: datetime) -> str:
    if spec.edge.tls == edge.OFF:
        return ""
    if not present:
        return "there is none"
    if spec.edge.tls == edge.FILES:
        return "" if authority.same_certificates(present, trusted) else "vllm_edge.certificate has changed"
    return authority.renewal_reason(present, trusted, names, now, asks=spec.edge.joins(spec.host))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
