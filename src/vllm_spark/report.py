"""What a run leaves to read: the report of a verification, its closing words, and the table of `status`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vllm_spark import gates, launch, memory, progress, ranks
from vllm_spark.gates import Verdict
from vllm_spark.refusal import RefusedError
from vllm_spark.spec import Spec

STATUS_COLUMNS = ("host", "deployment", "state", "up", "restarts", "digest", "drift", "memory free")
TABLE_WIDTH = 120


def verification(wanted: Mapping[str, Any], verdicts: Sequence[Verdict], run: Mapping[str, Any]) -> dict[str, Any]:
    """The report: what was expected, what was judged, and how the run went. Holds no secret: none is asked for."""
    return {
        "holds": not any(verdict.ok is False for verdict in verdicts),
        "rank": wanted["rank"],
        "expected": {key: wanted[key] for key in ("served_name", "model_root", "engine_version", "image", "launch")},
        "verdicts": [verdict.to_json() for verdict in verdicts],
        **run,
    }


def write(folder: Path, name: str, report: Mapping[str, Any]) -> Path:
    """Write a report as JSON and return its path. The folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def latest(folder: Path) -> list[dict[str, Any]]:
    """The reports of the deployment that was judged last, the newest of each of its hosts, the head's first."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        document = json.loads(path.read_text(encoding="utf-8"))
        first = next(iter(found.values()), document)
        if document["expected"]["launch"] == first["expected"]["launch"]:
            found.setdefault(document["host"], document)
    return sorted(found.values(), key=lambda document: document.get("rank", 0))


def readable(report: Mapping[str, Any]) -> str:
    """A report as a person reads it: one line a gate, then the closing words."""
    lines = [Verdict(**verdict).line() for verdict in report["verdicts"]]
    closing = [report["closing"]] if report["closing"] else []
    return "\n".join([f"{report['host']}, {report['expected']['served_name']}:", *lines, *closing])


def closing(wanted: Mapping[str, Any], verdicts: Iterable[Verdict], address: str, inventory: str = "") -> str:
    """The last words of a good run: an answer, the address, and what to type next. `inventory` as -i takes it. A worker
    has nothing to add to its head's."""
    if wanted["rank"]:
        return ""
    answer = next((verdict.said for verdict in verdicts if verdict.gate == gates.ANSWER and verdict.ok), "")
    base = f"http://{address}:{wanted['port']}/v1"
    body = json.dumps({"model": wanted["served_name"], "messages": [{"role": "user", "content": "Hello"}]})
    said = [f"{wanted['served_name']} answered: {answer}"] if answer else []
    key = ' -H "Authorization: Bearer $VLLM_API_KEY"' if wanted["api_key"] else ""
    return "\n".join(
        [
            *said,
            f"It serves at {base}",
            f"Next: curl {base}/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'",
            f"      ansible-playbook {f'-i {inventory} ' if inventory else ''}status.yml   (or verify.yml, stop.yml)",
        ]
    )


def status_rows(specs: Mapping[str, Any], boxes: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per Spark: what the inventory wants, what runs, and how the two differ."""
    found = {host: Spec.from_json(spec) for host, spec in specs.items() if spec}
    joined, apart = _joined(found, boxes)
    rows = []
    for host, facts in boxes.items():
        spec = joined.get(host)
        row = dict.fromkeys(STATUS_COLUMNS, "—") | {"host": host, "memory free": _memory(facts)}
        if spec:
            row |= _deployment_row(spec, facts)
        if host in apart:
            row["drift"] = apart[host]
        strangers = [unit for unit in facts["running_units"] if not spec or unit != spec.deployment.unit]
        if strangers:
            row["drift"] = f"also runs {', '.join(strangers)}"
        rows.append(row)
    return rows


def _joined(specs: Mapping[str, Spec], boxes: Mapping[str, Any]) -> tuple[dict[str, Spec], dict[str, str]]:
    """(every host's spec, that of a pair's rank with its fabric; by host why a pair's two cannot be one)."""
    joined, apart = dict(specs), {}
    for host, spec in specs.items():
        hosts = spec.deployment.hosts
        try:
            joined[host] = ranks.join({h: specs[h] for h in hosts}, {h: boxes[h] for h in hosts})[host]
        except RefusedError as error:
            apart[host] = f"no pair: {', '.join(refusal.id for refusal in error.refusals)}"
    return joined, apart


def _deployment_row(spec: Spec, facts: Mapping[str, Any]) -> dict[str, str]:
    unit = facts["units"].get(spec.deployment.unit, {})
    container = facts["docker"]["containers"].get(spec.deployment.container)
    return {
        "deployment": spec.deployment.name + (f", rank {spec.rank}" if len(spec.deployment.hosts) > 1 else ""),
        "state": _state(spec, unit, facts, container),
        "up": progress.clock(unit["active_s"]) if unit.get("ActiveState") == "active" else "—",
        "restarts": unit.get("NRestarts", "—"),
        "digest": container["image"].rpartition(":")[2][:12] if container else "—",
        "drift": _drift(spec, container),
    }


def _state(spec: Spec, unit: Mapping[str, Any], facts: Mapping[str, Any], container: Mapping[str, Any] | None) -> str:
    """The unit's state; of a rank that runs, what its supervisor knows: the unit of one that waits is active too."""
    shown = f"{unit.get('ActiveState', 'unknown')} ({unit.get('SubState', '')})"
    told = facts.get("states", {}).get(spec.deployment.name)
    if container and container["state"] != "running":
        return f"container {container['state']}"
    if not told or unit.get("ActiveState") != "active":
        last = f"; {told['last_end']}" if told and told.get("last_end") else ""
        return f"{shown}{last}"
    last = f"; before that: {told['last_end']}" if told["state"] != "serving" and told.get("last_end") else ""
    return f"{told['state']} {told['why']}".strip() + last


def _drift(spec: Spec, container: Mapping[str, Any] | None) -> str:
    if container is None:
        return "not running"
    if container["image"] != spec.image:
        return "another image"
    return "none" if container["labels"].get("vllm-spark.launch") == launch.fingerprint(spec) else "another launch"


def _memory(facts: Mapping[str, Any]) -> str:
    return f"{memory.gib(facts['memory']['available']).removesuffix(' GiB')} of {memory.gib(facts['memory']['total'])}"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The rows as a table of text."""
    shown = Table(*STATUS_COLUMNS)
    for row in rows:
        shown.add_row(*(row[column] for column in STATUS_COLUMNS))
    text = StringIO()
    Console(file=text, width=TABLE_WIDTH).print(shown)
    return text.getvalue().rstrip()
