"""Status: what every Spark runs and what is known of it, as a document for programs and a table for people. Pure.

docs/operations/status.md describes the document; its keys are a contract.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from vllm_spark.core import units
from vllm_spark.core.types import Facts
from vllm_spark.deploy import drift
from vllm_spark.deploy.drift import Drift
from vllm_spark.inventory.spec import Spec
from vllm_spark.lifecycle import operator_lock
from vllm_spark.lifecycle.operator_lock import LockHolder

Document = dict[str, Any]

# Of the document. It goes up when a key changes its meaning or goes; a new key leaves it.
VERSION = 1

COLUMNS = ("host", "deployment", "state", "image, model", "gates", "memory, tok/s", "drift")
TABLE_WIDTH = 120
SHOWN_DIGITS = 12
NOTHING = "—"

# templates/launch.sh.j2
OF_RANKS = re.compile(r"\(rank \d of (\d)\)")


@dataclass(frozen=True, slots=True)
class HostResult:
    """What a run knows of one host. `spec` is None for a Spark that shall be idle, and where `refused` says why nobody
    knows; `facts` is None where `problem` says why it did not answer. `holder_lives`, of the run that
    holds it, is from operator_lock.lives_here."""

    spec: Spec | None = None
    refused: str = ""
    facts: Facts | None = None
    problem: str = ""
    holder_lives: bool | None = None


@dataclass(frozen=True, slots=True)
class _Box:
    """One host that answered, with its drift."""

    asked: HostResult
    facts: Facts
    drift: Drift
    lying: Mapping[str, Any] = field(default_factory=dict)


def document(hosts: Mapping[str, HostResult], at: str, toolkit: str) -> Document:
    """Everything, for programs: `hosts` in the order of the inventory. `at` is the controller's time, ISO 8601."""
    shown = [_host(name, hosts, toolkit) for name in hosts]
    return {"version": VERSION, "at": at, "toolkit": toolkit, "hosts": shown}


def _host(name: str, hosts: Mapping[str, HostResult], toolkit: str) -> Document:
    asked = hosts[name]
    if asked.facts is None:
        wanted = [_unasked(asked.spec)] if asked.spec else []
        return _host_document(name, asked.problem or "it was not asked", asked, wanted)
    facts = asked.facts
    box = _Box(asked, facts, _drift(name, hosts, toolkit), facts["status"]["deployments"])
    docker = facts["docker"]
    problem = "" if docker["version"] else f"no Docker engine answers: {docker['error']}"
    return _host_document(name, problem, asked, [_deployment(one, box) for one in _names(box)])


def _host_document(name: str, problem: str, asked: HostResult, deployments: Sequence[Document]) -> Document:
    facts = asked.facts
    held = facts["status"]["lock"] if facts else None
    return {
        "host": name,
        "answers": facts is not None,
        "problem": problem,
        "memory": {key: facts["memory"][key] for key in ("total", "available")} if facts else None,
        "lock": _lock(held, asked.holder_lives) if held else None,
        "deployments": list(deployments),
    }


def _lock(held: Mapping[str, Any], alive: bool | None) -> Document:
    lock = LockHolder.from_json(held)
    of_run = {"user": lock.user, "controller": lock.controller, "pid": lock.pid, "verb": lock.verb}
    return {**of_run, "age_s": round(lock.age_s), "connected": lock.connected, "alive": alive}


def _drift(name: str, hosts: Mapping[str, HostResult], toolkit: str) -> Drift:
    asked = hosts[name]
    assert asked.facts is not None  # noqa: S101  its caller has looked; this tells the type checker
    if asked.refused:
        return drift.unknown("the inventory is refused")
    if asked.spec is None:
        return drift.of_idle(asked.facts)
    of_pair = [host for host in asked.spec.deployment.hosts if host in hosts]
    specs = {host: spec for host in of_pair if (spec := hosts[host].spec)}
    facts = {host: found for host in of_pair if (found := hosts[host].facts) is not None}
    return drift.of_host(specs, facts, name, toolkit)


def _names(box: _Box) -> list[str]:
    """The deployments of a Spark: what it shall serve first, then what else runs, then what else lies there."""
    wanted = [box.asked.spec.deployment.name] if box.asked.spec else []
    running = [unit.partition("@")[2].removesuffix(".service") for unit in box.facts["running_units"]]
    return list(dict.fromkeys([*wanted, *running, *sorted(box.lying)]))


def _unasked(spec: Spec) -> Document:
    """What a Spark that does not answer shall run: the same keys."""
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
    return dict.fromkeys((*of_launch, "state", "unit", "gates", "tokens", "liveness", "taken_back", "drift"))


def _ranks(spec: Spec | None, launch: str) -> int | None:
    """On how many Sparks it runs; of one that the inventory does not have here, by its launch's own words."""
    said = OF_RANKS.search(launch)
    return len(spec.deployment.hosts) if spec else int(said[1]) if said else None


def _deployment(name: str, box: _Box) -> Document:
    facts, lying = box.facts, box.lying.get(name, {})
    spec = box.asked.spec if box.asked.spec and box.asked.spec.deployment.name == name else None
    record = facts["records"].get(name) or {}
    container = facts["docker"]["containers"].get(f"vllm-{name}")
    running = container if container and container["state"] == "running" else None
    return {
        **_empty(),
        "name": name,
        "recipe": record.get("recipe") or (spec.recipe["name"] if spec else None),
        "rank": record.get("rank", spec.rank if spec else None),
        "ranks": _ranks(spec, lying.get("launch", "")),
        "wanted": None if box.asked.refused else spec is not None,
        "state": _state(name, facts, container),
        "unit": _unit(facts["units"].get(f"vllm@{name}.service")),
        "image": _image(running),
        "model": record.get("model"),
        "launch": record.get("launch"),
        "toolkit": record.get("toolkit"),
        "gates": _gates(lying.get("judged"), record),
        "tokens": tokens(lying.get("counters") or []),
        "liveness": _liveness(lying.get("liveness")),
        "derived": lying.get("derived"),
        "taken_back": _taken_back(lying.get("failed"), record),
        "drift": _drift_document(_drift_of(name, spec, box)),
    }


def _drift_of(name: str, spec: Spec | None, box: _Box) -> Drift:
    """That of what a Spark shall serve is the Spark's; what else runs is stopped by a deploy or refused by it."""
    if spec or box.asked.refused:
        return box.drift
    unit = f"vllm@{name}.service"
    stops = f"{unit} stops"
    if stops in box.drift.reasons:
        return Drift(True, (stops,))
    if unit in box.facts["running_units"]:
        return Drift(True, ("it runs, and the inventory has it nowhere active",))
    return Drift(False)


def _drift_document(found: Drift) -> Document:
    return {"differs": found.differs, "reasons": list(found.reasons), "launch_diff": list(found.launch_diff)}


def _unit(shown: Mapping[str, Any] | None) -> Document | None:
    if not shown:
        return None
    active = shown.get("ActiveState")
    return {
        "active": active,
        "sub": shown.get("SubState"),
        "enabled": shown.get("UnitFileState") == "enabled",
        "result": shown.get("Result"),
        "up_s": round(shown["active_s"]) if active == "active" and "active_s" in shown else None,
        "restarts": int(shown.get("NRestarts") or 0),
    }


def _state(name: str, facts: Facts, container: Mapping[str, Any] | None) -> str:
    """The unit's state; of a rank that runs, what its supervisor knows: the unit of one that waits is active too."""
    unit = facts["units"].get(f"vllm@{name}.service", {})
    told = facts.get("states", {}).get(name)
    if name not in facts["status"]["deployments"] and not container:
        return "not deployed"
    if container and container["state"] != "running":
        return f"container {container['state']}"
    if not told or unit.get("ActiveState") != "active":
        last = f"; {told['last_end']}" if told and told.get("last_end") else ""
        return f"{unit.get('ActiveState', 'unknown')} ({unit.get('SubState', '')}){last}"
    last = f"; before that: {told['last_end']}" if told["state"] != "serving" and told.get("last_end") else ""
    return f"{told['state']} {told['why']}".strip() + last


def _image(running: Mapping[str, Any] | None) -> Document | None:
    """What the container runs, not what the inventory says: its name with the digest, and Docker's id."""
    return {"name": running["image"], "id": running["image_id"]} if running else None


def _gates(judged: Mapping[str, Any] | None, record: Mapping[str, Any]) -> Document | None:
    """When a launch was judged last, by the Spark's own history; `this_launch`: none has come since."""
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


def tokens(looks: Sequence[Mapping[str, float]]) -> Document | None:
    """The engine's own counters as speeds. `looks`: one or two of them (spark_status.first_sample), two where requests
    ran. `now` is tokens a second of all requests together between the two; `mean` that of one request, over all that
    have ended since the start, without each one's first token, which prefill gives."""
    if not looks:
        return None
    first, last = looks[0], looks[-1]
    return {
        "running": int(last.get("running", 0)),
        "waiting": int(last.get("waiting", 0)),
        "now": _rate(last.get("tokens", 0.0) - first.get("tokens", 0.0), last["at"] - first["at"]),
        "mean": _rate(last.get("ended_tokens", 0.0) - last.get("ended", 0.0), last.get("decode_s", 0.0)),
    }


def _rate(count: float, seconds: float) -> float | None:
    """None where nothing was measured; a counter that goes back is an engine that started anew."""
    return round(count / seconds, 2) if seconds > 0 and count >= 0 else None


def _liveness(said: Mapping[str, Any] | None) -> Document | None:
    """What the timer that asks for a token saw last."""
    if not said:
        return None
    return {"ready": bool(said.get("ready")), "misses": int(said.get("misses", 0)), "age_s": round(said["age_s"])}


def _taken_back(failed: Mapping[str, Any] | None, record: Mapping[str, Any]) -> Document | None:
    """The launch that missed its gates, while the one before it is back in its place."""
    if not failed or not record or (failed.get("previous") or {}).get("launch") != record.get("launch"):
        return None
    return {key: failed.get(key) for key in ("recipe", "image", "model", "launch", "toolkit")}


def table(shown: Document) -> str:
    """The document as a person reads it: a row a deployment, then what does not fit into one."""
    drawn = Table(*(Column(name, overflow="fold") for name in COLUMNS), show_lines=True)
    for host in shown["hosts"]:
        for row in _rows(host):
            drawn.add_row(*row)
    text = StringIO()
    Console(file=text, width=TABLE_WIDTH).print(drawn, markup=False)
    return "\n".join([text.getvalue().rstrip(), *_notes(shown)])


def _rows(host: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    lines = [host["host"], *(["held"] if host["lock"] else [])]
    free = _free(host["memory"])
    if not host["deployments"]:
        yield ("\n".join(lines), NOTHING, _shown_state(None, host), NOTHING, NOTHING, free, NOTHING)
    for one in host["deployments"]:
        yield (
            "\n".join(lines),
            _named(one),
            "\n".join(filter(None, [_shown_state(one, host), _up(one["unit"]), _alive(one)])),
            f"{_digest(one['image'])}\n{_commit(one['model'])}",
            _judged(one),
            f"{free}\n{_speed(one['tokens'])}",
            Drift(one["drift"]["differs"], tuple(one["drift"]["reasons"])).said(),
        )


def _named(one: Mapping[str, Any]) -> str:
    rank = f", rank {one['rank']}" if one["ranks"] and one["ranks"] > 1 else ""
    note = {True: "", False: "\nnot active", None: ""}[one["wanted"]]
    return f"{one['name']}{rank}\n{one['recipe'] or NOTHING}{note}"


def _shown_state(one: Mapping[str, Any] | None, host: Mapping[str, Any]) -> str:
    """In a word; what is wrong with a host as a whole stands below the table."""
    if host["problem"]:
        return "no Docker" if host["answers"] else "no answer"
    return str(one["state"]) if one else "idle"


def _up(unit: Mapping[str, Any] | None) -> str:
    if not unit or unit["up_s"] is None:
        return ""
    again = f", {unit['restarts']} restarts" if unit["restarts"] else ""
    return f"up {units.clock(unit['up_s'])}{again}"


def _alive(one: Mapping[str, Any]) -> str:
    said = one["liveness"]
    return f"{said['misses']} tokens missed" if said and said["misses"] else ""


def _digest(image: Mapping[str, Any] | None) -> str:
    return str(image["name"]).rpartition(":")[2][:SHOWN_DIGITS] if image else NOTHING


def _commit(model: str | None) -> str:
    return str(model).rpartition("@")[2][:SHOWN_DIGITS] if model else NOTHING


def _judged(one: Mapping[str, Any]) -> str:
    gates = one["gates"]
    if not gates:
        return NOTHING
    said = f"✓ {len(gates['held'])} held" if gates["holds"] else f"✗ {', '.join(gates['missed'])}"
    when = str(gates["at"] or "").removesuffix("Z").replace("T", " ")[:16]
    return "\n".join([said, when, *([] if gates["this_launch"] else ["of another launch"])])


def _free(found: Mapping[str, int] | None) -> str:
    if not found:
        return NOTHING
    return f"{units.gib(found['available']).removesuffix(' GiB')}/{units.gib(found['total'])}"


def _speed(found: Mapping[str, Any] | None) -> str:
    if not found:
        return NOTHING
    if found["now"] is not None and found["running"]:
        return f"{found['now']:.1f} tok/s\n{found['running']} running"
    return f"idle, mean {found['mean']:.1f}" if found["mean"] else "idle"


def _notes(shown: Document) -> Iterator[str]:
    for host in shown["hosts"]:
        if host["problem"]:
            yield f"{host['host']}  {'' if host['answers'] else 'does not answer: '}{host['problem']}"
        if lock := host["lock"]:
            held = LockHolder.from_json(lock)
            yield f"{host['host']}  is held by {held.said()}; {operator_lock.holder_life(held, lock['alive'])}"
        for one in host["deployments"]:
            where = f"{host['host']}  {one['name']}"
            if one["taken_back"]:
                yield f"{where}: {one['taken_back']['recipe']} missed its gates and was taken back; see failed/"
            for reason in one["drift"]["reasons"][2:]:
                yield f"{where}: drift, {reason}"
            yield from (f"{where}  {line}" for line in one["drift"]["launch_diff"])
