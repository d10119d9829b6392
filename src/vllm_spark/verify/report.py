"""What a run leaves to read: the report of a verification, and its closing words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_spark.verify import gates
from vllm_spark.verify.gates import Verdict


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
