"""The status document as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from vllm_spark.core import table as text_table
from vllm_spark.core import units
from vllm_spark.core.run_command import typed
from vllm_spark.core.text import DIGEST_DIGITS, short_digest
from vllm_spark.deploy.drift import Drift
from vllm_spark.doctor.findings import Finding, explain
from vllm_spark.edge import lifetime, version
from vllm_spark.lifecycle import operator_lock, reach
from vllm_spark.lifecycle.operator_lock import LockHolder
from vllm_spark.node.deployment_state import GAVE_UP, STOPPED

COLUMNS = ("host", "deployment", "state", "image, model", "gates", "reach", "memory, tok/s", "drift")
TABLE_WIDTH = 120
NOTHING = "—"
# Transitions before the present one that are shown.
BEFORE = 3
# What host_access calls a Spark that cannot be reached.
NO_CONNECTION = "no SSH connection"


def table(document: Mapping[str, Any]) -> str:
    """Return the document as text: a table with entry row per deployment, then the notes that do not fit into a row."""
    grid = Table(*COLUMNS, show_lines=True)
    for host in document["hosts"]:
        for row in _rows(host):
            grid.add_row(*row)
    return "\n".join([text_table.text(grid, TABLE_WIDTH), *_notes(document)])


def _rows(host: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    lines = [host["host"], *(["held"] if host["lock"] else [])]
    free = _free(host["memory"])
    if not host["deployments"]:
        edge = host["edge"] or {}
        drifts = edge.get("drift")
        differs = Drift(drifts["differs"], tuple(drifts["reasons"])).summary() if drifts else NOTHING
        shown = reach.cell(edge) if edge else NOTHING
        yield ("\n".join(lines), NOTHING, _state(None, host), NOTHING, NOTHING, shown, free, differs)
    for entry in host["deployments"]:
        yield (
            "\n".join(lines),
            _name(entry),
            "\n".join(filter(None, [_state(entry, host), _up(entry["unit"]), _alive(entry)])),
            f"{_digest(entry['image'])}\n{_commit(entry['model'])}",
            _judged(entry),
            reach.cell(entry["reach"] or host["edge"]),
            f"{free}\n{_speed(entry['tokens'])}",
            Drift(entry["drift"]["differs"], tuple(entry["drift"]["reasons"])).summary(),
        )


def _name(entry: Mapping[str, Any]) -> str:
    rank = f", rank {entry['rank']}" if entry["ranks"] and entry["ranks"] > 1 else ""
    note = {True: "", False: "\nnot active", None: ""}[entry["wanted"]]
    return f"{entry['name']}{rank}\n{entry['recipe'] or NOTHING}{note}"


def _state(entry: Mapping[str, Any] | None, host: Mapping[str, Any]) -> str:
    """Return the state in a word. The notes below the table have the problem of a host as a whole."""
    if host["problem"]:
        no_facts = "no access" if _is_explained(host) and NO_CONNECTION not in host["problem"] else "no answer"
        return "no Docker" if host["answers"] else no_facts
    return str(entry["state"]) if entry else "forwards" if host["edge"] else "idle"


def _is_explained(host: Mapping[str, Any]) -> bool:
    """Return True if the problem is a message of host_access, which names its host itself."""
    return str(host["problem"]).startswith(f"{host['host']}: ")


def _up(unit: Mapping[str, Any] | None) -> str:
    if not unit or unit["up_s"] is None:
        return ""
    again = f", {unit['restarts']} restarts" if unit["restarts"] else ""
    return f"up {units.clock(unit['up_s'])}{again}"


def _alive(entry: Mapping[str, Any]) -> str:
    liveness = entry["liveness"]
    return f"{liveness['misses']} tokens missed" if liveness and liveness["misses"] else ""


def _state_lines(entry: Mapping[str, Any], limit: str) -> Iterator[str]:
    """Yield the reason of a state in which an owner looks for one, its cause by the doctor's rules, what to do, what
    came before it. `limit`: the Sparks of the deployment, as -l takes them."""
    if not entry["why"] or (entry["state"] == STOPPED and not entry["wanted"]):
        return
    since = f" since {_time(entry['since'])}" if entry["since"] else ""
    yield f"{entry['state']}{since}: {entry['why']}"
    if entry["cause"]:
        yield f"its cause: {explain(Finding(**entry['cause']))}"
    if entry["state"] == GAVE_UP:
        yield typed(f"Fix: find the cause, then `ansible-playbook deploy.yml -l {limit}`. See docs/runbooks/gave-up.md")
    if before := entry["history"][-1 - BEFORE : -1]:
        yield "before that: " + ", ".join(f"{one['state']} {_time(one['time'])}" for one in reversed(before))


def _time(iso: str) -> str:
    return iso.removesuffix("Z").replace("T", " ")


def _digest(image: Mapping[str, Any] | None) -> str:
    return short_digest(str(image["name"])) if image else NOTHING


def _commit(model: str | None) -> str:
    return str(model).rpartition("@")[2][:DIGEST_DIGITS] if model else NOTHING


def _judged(entry: Mapping[str, Any]) -> str:
    gates = entry["gates"]
    if not gates:
        return NOTHING
    when = str(gates["at"] or "").removesuffix("Z").replace("T", " ")[:16]
    if not gates["this_launch"]:
        return f"not judged\nsince {gates['verb'] or 'its start'}\n{when}"
    result = f"✓ {len(gates['held'])} held" if gates["holds"] else f"✗ {', '.join(gates['missed'])}"
    return f"{result}\n{when}"


def _free(memory: Mapping[str, int] | None) -> str:
    if not memory:
        return NOTHING
    return f"{units.gib(memory['available']).removesuffix(' GiB')}/{units.gib(memory['total'])}"


def _speed(tokens: Mapping[str, Any] | None) -> str:
    if not tokens:
        return NOTHING
    if tokens["now"] is not None and tokens["running"]:
        return f"{tokens['now']:.1f} tok/s\n{tokens['running']} running"
    return f"idle, mean {tokens['mean']:.1f}" if tokens["mean"] else "idle"


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    for host in document["hosts"]:
        if host["problem"]:
            why = "" if host["answers"] else "does not answer: "
            yield host["problem"] if _is_explained(host) else f"{host['host']}  {why}{host['problem']}"
        if lock := host["lock"]:
            holder = LockHolder.from_json(lock)
            yield f"{host['host']}  is held by {holder.label()}; {operator_lock.holder_life(holder, lock['alive'])}"
        if life := host["certificate"]:
            yield f"{host['host']}  {life['warning'] or lifetime.shown(life)}"
        if haproxy := host["haproxy"]:
            yield from (f"{host['host']}  {line}" for line in haproxy["warnings"] or [version.shown(haproxy)])
        for entry in host["deployments"]:
            where = f"{host['host']}  {entry['name']}"
            hosts = [
                one["host"] for one in document["hosts"] if entry["name"] in {own["name"] for own in one["deployments"]}
            ]
            yield from (f"{where}: {line}" for line in _state_lines(entry, ",".join(hosts)))
            if entry["taken_back"]:
                yield f"{where}: {entry['taken_back']['recipe']} missed its gates and was taken back; see failed/"
            for reason in entry["drift"]["reasons"][2:]:
                yield f"{where}: drift, {reason}"
            yield from (f"{where}  {line}" for line in entry["drift"]["launch_diff"])
