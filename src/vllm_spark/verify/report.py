"""The report of a verification, and the closing lines that an operator sees."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_spark.core.run_command import typed
from vllm_spark.core.types import Document
from vllm_spark.node.engine_api import CHAT, EMBED, RERANK
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.gates import answer
from vllm_spark.verify.verdict import Verdict, any_failed

# Role -> a request that the owner can send at once: its path below /v1, and its body beside the model.
EXAMPLES: Mapping[str, tuple[str, Document]] = {
    CHAT: ("/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    EMBED: ("/embeddings", {"input": ["Hello"]}),
    RERANK: ("/rerank", {"query": "Hello", "documents": ["Hello", "Goodbye"]}),
}


def verification(request: GateRequest, verdicts: Sequence[Verdict], run: Document) -> dict[str, Any]:
    """Return the report: the expected values, the verdicts, and the facts of the run. It contains no secret."""
    return {
        "holds": not any_failed(verdicts),
        "rank": request.rank,
        "expected": {
            "served_name": request.served_name,
            "model_root": request.model_root,
            "engine_version": request.engine_version,
            "image": request.image,
            "launch": request.launch,
        },
        "verdicts": [verdict.to_json() for verdict in verdicts],
        **run,
    }


def write(folder: Path, name: str, report: Document) -> Path:
    """Write a report as JSON and return its path. Creates the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def latest(folder: Path) -> list[dict[str, Any]]:
    """Return the newest report of each host of the deployment that was judged last, the head's first."""
    by_host: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True):
        document = json.loads(path.read_text(encoding="utf-8"))
        first = next(iter(by_host.values()), document)
        if document["expected"]["launch"] == first["expected"]["launch"]:
            by_host.setdefault(document["host"], document)
    return sorted(by_host.values(), key=lambda document: document.get("rank", 0))


def readable(report: Document) -> str:
    """Return a report as text: one line per verdict, then the closing lines."""
    lines = [Verdict.from_json(verdict).line() for verdict in report["verdicts"]]
    closing = [report["closing"]] if report["closing"] else []
    return "\n".join([f"{report['host']}, {report['expected']['served_name']}:", *lines, *closing])


def closing(request: GateRequest, verdicts: Iterable[Verdict], address: str, authority: str = "") -> str:
    """Return the closing lines of a good run: an answer, the address, and the next command. Empty for a worker.

    `authority` is the file that a client of the edge trusts."""
    if request.rank:
        return ""
    answered = next((verdict.observed for verdict in verdicts if verdict.gate == answer.NAME and verdict.ok), "")
    base = f"{request.client_url(address)}/v1"
    path, example = EXAMPLES[request.role]
    body = json.dumps({"model": request.served_name, **example})
    greeting = [f"{request.served_name} answered: {answered}"] if answered else []
    variable = "VLLM_KEY" if request.edge else "VLLM_API_KEY" if request.api_key else ""
    key = f' -H "Authorization: Bearer ${variable}"' if variable else ""
    trust = f" --cacert {authority}" if authority else ""
    return "\n".join(
        [
            *greeting,
            f"It serves at {base}",
            f"Next: curl{trust} {base}{path} -H 'Content-Type: application/json'{key} -d '{body}'",
            typed("      ansible-playbook status.yml"),
        ]
    )
