"""Evidence made for tests: a run of a server with given figures and noise."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

from vllm_spark.bench import evidence
from vllm_spark.bench.evidence import Evidence
from vllm_spark.node.bench.records import UNITS

KEY = {
    "model": "owner/model",
    "commit": "1" * 40,
    "layout": "",
    "image": "sha256:0c53aaaaaaaabbbb",
    "launch": "aa",
    "topology": "1 node",
    "hosts": "spark-1",
    "toolkit": "0.1.0",
    "protocol": "p",
}
SUBJECT = {"deployment": "chat", "recipe": "", "served_name": "m", "url": "http://spark-1:8000", "engine_version": ""}
SERVER = {"step": 40.0, "decode": 60.0, "prefill": 1500.0, "first_token": 350.0, "acceptance": 0.6, "memory": 80.0}


def run_record(started: str = "2026-11-23T10:00:00Z", **changes: Any) -> dict[str, Any]:
    record = {
        "record": "run",
        "schema": 1,
        "id": "0123456789ab",
        "started": started,
        "profile": {"name": "standard"},
        "key": KEY,
        "subject": SUBJECT,
        "host": {},
    }
    return record | changes


def cell_record(figures: dict[str, list[float]], streams: int = 1, prompt: int = 512, **changes: Any) -> dict[str, Any]:
    load = {"corpus": "code", "prompt": prompt, "output": 128, "depth": 0, "streams": streams}
    record = {
        "record": "cell",
        "cell": {"id": f"code s{streams}", **load, "sampling": {}, "server": {}},
        "state": "measured",
        "started": 0.0,
        "seconds": 9.0,
        "runs": 3,
        "figures": {name: figure(name, values) for name, values in figures.items()},
        "faults": [],
        "phases": {},
        "samples": {"spark-1": [{"t": 1.0, "sm_mhz": 2500.0, "swap_gib": 0.0, "throttle": ""}]},
    }
    return record | changes


def figure(name: str, values: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else None
    return {"unit": UNITS[name], "median": statistics.median(values), "spread": spread, "values": values}


END = {"record": "end", "seconds": 60.0, "measured": 1, "failed": 0}


def text(*records: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def parsed(*records: dict[str, Any]) -> Evidence:
    return evidence.parse(text(*records, END), Path("run.jsonl"))


# Cells of `measured`: output of one stream, of four streams, and of one stream after a long prompt.
CELLS: tuple[tuple[int, dict[str, Any]], ...] = (
    (1, {}),
    (4, {}),
    (1, {"id": "long s1", "prompt": 8192}),
)


def measured(
    seed: int, sigma: float, factors: dict[str, float] | None = None, *, values: int = 5, **changes: Any
) -> Evidence:
    """Return a run with noise. `factors` change figures of SERVER; `run` and `cell` change the records."""
    source = random.Random(seed)  # noqa: S311  noise of a test
    cells = []
    for streams, load in CELLS:
        figures = {
            name: [value * (factors or {}).get(name, 1) * source.gauss(1, sigma) for _ in range(values)]
            for name, value in SERVER.items()
        }
        if streams > 1:
            figures["total"] = [streams * value for value in figures["decode"]]
            del figures["prefill"]
        record = cell_record(figures, streams, **changes.get("cell", {}))
        cells.append(record | {"cell": record["cell"] | load})
    return parsed(run_record(**changes.get("run", {})), *cells)
