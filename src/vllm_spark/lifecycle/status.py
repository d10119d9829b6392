"""Status document: what every Spark runs, its last results and its drift. Pure.

docs/operations/status.md describes the document. Its keys are a contract.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_spark.core.types import Facts
from vllm_spark.deploy import drift
from vllm_spark.deploy.drift import Drift
from vllm_spark.doctor import diagnosis
from vllm_spark.doctor.places import Place
from vllm_spark.edge import lifetime, version
from vllm_spark.inventory.host_edge import Edge
from vllm_spark.inventory.intent import HostIntent
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import engine_state, reach
from vllm_spark.lifecycle.operator_lock import LockHolder
from vllm_spark.node.host_layout import deployment_of

Document = dict[str, Any]

# Version of the document. It increases when a key is removed or changes its meaning, not when a key is added.
VERSION = 1

# The last line of a run that has read none of its Sparks.
NONE_ANSWERS = "no Spark could be read — expected: one that answers. Fix: what its row in the table says."

# templates/launch.sh.j2
OF_RANKS = re.compile(r"\(rank \d of (\d)\)")


@dataclass(frozen=True, slots=True)
class HostResult:
    """The intent and the facts of one host. `intent` is None if the inventory is refused. `facts` is None if the host
    did not answer (`problem` has the reason). `holder_lives` is the result of spark_lock.lives for the run that has
    locked the host. `address` is that of the host in the inventory."""

    intent: HostIntent | None
    facts: Facts | None = None
    problem: str = ""
    holder_lives: bool | None = None
    address: str = ""

    @property
    def rank(self) -> Spec | None:
        return self.intent.rank if self.intent else None

    @property
    def edge(self) -> Edge | None:
        return self.intent.edge if self.intent else None


@dataclass(frozen=True, slots=True)
class _Host:
    """One host that answered, with its drift. `on_disk` holds its deployments by name."""

    result: HostResult
    facts: Facts
    drift: Drift
    on_disk: Mapping[str, Any] = field(default_factory=dict)


def document(
    hosts: Mapping[str, HostResult],
    at: str,
    toolkit: str,
    earlier: Mapping[str, Sequence[HostResult]] | None = None,
) -> Document:
    """Return the document. `hosts` is in the order of the inventory. `at` is the controller's time, ISO 8601. `earlier`
    are the results of a Spark that several deployments share, one for each but the last."""
    documents = [_of_turns(name, hosts, earlier or {}, toolkit) for name in hosts]
    return {"version": VERSION, "at": at, "toolkit": toolkit, "hosts": documents}


def _of_turns(
    name: str, hosts: Mapping[str, HostResult], earlier: Mapping[str, Sequence[HostResult]], toolkit: str
) -> Document:
    """Return the document of a host, in which each active deployment is that of its own turn."""
    turns = [*earlier.get(name, ()), hosts[name]]
    documents = [_host(name, _same_turn(name, one, hosts, earlier), toolkit) for one in turns]
    wanted = {found["name"]: found for one in documents for found in one["deployments"] if found["wanted"]}
    others = [found for found in documents[-1]["deployments"] if found["name"] not in wanted]
    return {**documents[-1], "deployments": [*wanted.values(), *others]}


def _same_turn(
    name: str, result: HostResult, hosts: Mapping[str, HostResult], earlier: Mapping[str, Sequence[HostResult]]
) -> dict[str, HostResult]:
    """Return the results of all hosts, of the hosts of a deployment those of its turn."""
    view = {**hosts, name: result}
    placed = result.rank.deployment if result.rank else None
    for host in set(placed.hosts if placed else ()) & earlier.keys() - {name}:
        of_turn = (one for one in earlier[host] if one.rank and one.rank.deployment == placed)
        view[host] = next(of_turn, hosts[host])
    return view


def _host(name: str, hosts: Mapping[str, HostResult], toolkit: str) -> Document:
    result = hosts[name]
    if result.facts is None:
        active = [_unanswered(result.rank)] if result.rank else []
        return _host_document(name, result.problem or "it was not asked", result, None, active)
    facts = result.facts
    host = _Host(result, facts, _drift(name, hosts, toolkit), facts["status"]["deployments"])
    return _host_document(name, _problem(host), result, host.drift, [_deployment(one, host) for one in _names(host)])


def _problem(host: _Host) -> str:
    """Return the fault of a host as a whole, or nothing. A host that only forwards needs no Docker."""
    docker, edge = host.facts["docker"], host.result.edge
    if docker["version"] or (edge and edge.only_forwards and not _names(host)):
        return ""
    return f"no Docker engine answers: {docker['error']}"


def _host_document(
    name: str, problem: str, result: HostResult, own_drift: Drift | None, deployments: Sequence[Document]
) -> Document:
    facts = result.facts
    lock = facts["status"]["lock"] if facts else None
    return {
        "host": name,
        "answers": facts is not None,
        "problem": problem,
        "memory": {key: facts["memory"][key] for key in ("total", "available")} if facts else None,
        "lock": _lock(lock, result.holder_lives) if lock else None,
        "edge": _edge(result, own_drift),
        "certificate": _certificate(facts),
        "haproxy": version.of_host(facts.get("edge")) if facts else None,
        "deployments": list(deployments),
    }


def _edge(result: HostResult, own_drift: Drift | None) -> Document | None:
    """Return the edge of a host that forwards, None for one that heads a deployment or has no edge. A rank has the
    drift of its host."""
    edge = result.edge
    if edge is None or (result.rank and not edge.only_forwards):
        return None
    found = result.facts.get("edge") if result.facts else None
    forwards = [one.host for one in edge.neighbours]
    return {
        **reach.of_edge(edge.settings, found),
        "forwards_to": forwards,
        "drift": _drift_document(own_drift) if own_drift and not result.rank else None,
    }


def _certificate(facts: Facts | None) -> Document | None:
    """Return the ends of the certificate of the host's edge and of its authority."""
    life = lifetime.of_host(facts.get("edge") or {}) if facts else None
    return {**life.to_json(), "warning": lifetime.warning(facts)} if facts and life else None


def _lock(document: Mapping[str, Any], alive: bool | None) -> Document:
    lock = LockHolder.from_json(document)
    of_run = {"user": lock.user, "controller": lock.controller, "pid": lock.pid, "verb": lock.verb}
    return {**of_run, "age_s": round(lock.age_s), "connected": lock.connected, "alive": alive}


def _drift(name: str, hosts: Mapping[str, HostResult], toolkit: str) -> Drift:
    result = hosts[name]
    if result.intent is None:
        return drift.unknown("the inventory is refused")
    near = result.rank.deployment.hosts if result.rank else (name,)
    intents = {host: found.intent for host in near if (found := hosts.get(host)) and found.intent}
    facts = {host: reported for host in intents if (reported := hosts[host].facts) is not None}
    return drift.of_host(intents, facts, name, toolkit, result.address)


def _names(host: _Host) -> list[str]:
    """Return the deployments of a host: the active one, then what else runs, then what else is on disk."""
    active = [host.result.rank.deployment.name] if host.result.rank else []
    running = [deployment_of(unit) for unit in host.facts["running_units"]]
    return list(dict.fromkeys([*active, *running, *sorted(host.on_disk)]))


def _unanswered(spec: Spec) -> Document:
    """Return the active deployment of a host that did not answer, with the same keys."""
    return {
        **_empty(),
        "name": spec.deployment.name,
        "recipe": spec.recipe["name"],
        "rank": spec.rank,
        "ranks": len(spec.deployment.hosts),
        "wanted": True,
        "drift": _drift_document(drift.unknown("no answer")),
    }


def _empty() -> Document:
    of_launch = ("name", "recipe", "rank", "ranks", "wanted", "image", "model", "launch", "toolkit", "derived")
    of_state = ("state", "why", "since", "last_end", "history", "cause")
    return dict.fromkeys((*of_launch, *of_state, "unit", "gates", "tokens", "liveness", "taken_back", "drift", "reach"))


def _ranks(spec: Spec | None, launch: str) -> int | None:
    """Return the number of ranks, from the inventory, or from the launch if the inventory does not know it."""
    match = OF_RANKS.search(launch)
    return len(spec.deployment.hosts) if spec else int(match[1]) if match else None


def _deployment(name: str, host: _Host) -> Document:
    facts, on_disk = host.facts, host.on_disk.get(name, {})
    spec = host.result.rank if host.result.rank and host.result.rank.deployment.name == name else None
    record = facts["records"].get(name) or {}
    container = facts["docker"]["containers"].get(f"vllm-{name}")
    running = container if container and container["state"] == "running" else None
    own_drift = _drift_of(name, spec, host)
    return {
        **_empty(),
        "name": name,
        "recipe": record.get("recipe") or (spec.recipe["name"] if spec else None),
        "rank": record.get("rank", spec.rank if spec else None),
        "ranks": _ranks(spec, on_disk.get("launch", "")),
        "wanted": None if host.result.intent is None else spec is not None,
        **asdict(engine_state.of_deployment(name, facts, container)),
        "history": [{**entry, "time": engine_state.iso(entry["time"])} for entry in on_disk.get("history", [])],
        "cause": _cause(
            on_disk.get("journal") or [], Place(deployment=name, hosts=spec.deployment.hosts if spec else ())
        ),
        "unit": _unit(facts["units"].get(f"vllm@{name}.service")),
        "image": _image(running),
        "model": record.get("model"),
        "launch": record.get("launch"),
        "toolkit": record.get("toolkit"),
        "gates": _gates(on_disk.get("judged"), record),
        "tokens": tokens(on_disk.get("counters") or []),
        "liveness": _liveness(on_disk.get("liveness")),
        "derived": on_disk.get("derived"),
        "taken_back": _taken_back(on_disk.get("failed"), record, own_drift.launch),
        "drift": _drift_document(own_drift),
        "reach": reach.document(spec, on_disk.get("launch", ""), facts.get("edge")),
    }


def _cause(journal: Sequence[str], place: Place) -> Document | None:
    """Return what the doctor's rules say of the end of a unit's journal: the same as of a whole log."""
    found = diagnosis.root_cause(journal, place)
    return {key: getattr(found, key) for key in ("signature", "cause", "line", "fix", "runbook")} if found else None


def _drift_of(name: str, spec: Spec | None, host: _Host) -> Drift:
    """Return the drift of a deployment. The active one has that of its host; deploy stops or refuses any other."""
    if spec or host.result.intent is None:
        return host.drift
    unit = f"vllm@{name}.service"
    stops = f"{unit} would be stopped"
    if stops in host.drift.reasons:
        return Drift(True, (stops,))
    if unit in host.facts["running_units"]:
        return Drift(True, ("it runs, and the inventory has it nowhere active",))
    return Drift(False)


def _drift_document(drift_: Drift) -> Document:
    return {"differs": drift_.differs, "reasons": list(drift_.reasons), "launch_diff": list(drift_.launch_diff)}


def _unit(properties: Mapping[str, Any] | None) -> Document | None:
    if not properties:
        return None
    active = properties.get("ActiveState")
    return {
        "active": active,
        "sub": properties.get("SubState"),
        "enabled": properties.get("UnitFileState") == "enabled",
        "result": properties.get("Result"),
        "up_s": round(properties["active_s"]) if active == "active" and "active_s" in properties else None,
        "restarts": int(properties.get("NRestarts") or 0),
    }


def _image(running: Mapping[str, Any] | None) -> Document | None:
    """Return the image that the container runs: its name with the digest, and Docker's id."""
    return {"name": running["image"], "id": running["image_id"]} if running else None


def _gates(judged: Mapping[str, Any] | None, record: Mapping[str, Any]) -> Document | None:
    """Return the last judged gates of the current launch. Without any, those of the launch that was judged last: then
    `this_launch` is False."""
    if not judged:
        return None
    gates = judged.get("gates") or {}
    return {
        "at": judged.get("time"),
        "holds": bool(judged.get("holds")),
        "held": list(gates.get("held", [])),
        "missed": list(gates.get("missed", [])),
        "verb": judged.get("verb"),
        "this_launch": judged.get("launch") == record.get("launch"),
    }


def tokens(samples: Sequence[Mapping[str, float]]) -> Document | None:
    """Return speeds in tokens per second, from one or two samples of the engine's counters (spark_status.first_sample):
    two if requests ran. `now` is the rate of all requests together between the samples. `mean` is that of one request,
    over all that have ended since the start, without the first token of each, which prefill produces."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    return {
        "running": int(last.get("running", 0)),
        "waiting": int(last.get("waiting", 0)),
        "now": _rate(last.get("tokens", 0.0) - first.get("tokens", 0.0), last["at"] - first["at"]),
        "mean": _rate(last.get("ended_tokens", 0.0) - last.get("ended", 0.0), last.get("decode_s", 0.0)),
    }


def _rate(count: float, seconds: float) -> float | None:
    """Return None if nothing was measured, or if a counter decreased because the engine has restarted."""
    return round(count / seconds, 2) if seconds > 0 and count >= 0 else None


def _liveness(result: Mapping[str, Any] | None) -> Document | None:
    """Return the last result of the liveness timer."""
    if not result:
        return None
    return {"ready": bool(result.get("ready")), "misses": int(result.get("misses", 0)), "age_s": round(result["age_s"])}


def _taken_back(failed: Mapping[str, Any] | None, record: Mapping[str, Any], requested: str) -> Document | None:
    """Return the launch that failed its gates, if the previous launch has replaced it and the inventory still requests
    it. `requested` is the fingerprint of the inventory's launch, empty if it is unknown or of another deployment."""
    if not failed or not record or (failed.get("previous") or {}).get("launch") != record.get("launch"):
        return None
    if failed.get("launch") != requested:
        return None
    return {key: failed.get(key) for key in ("recipe", "image", "model", "launch", "toolkit")}
