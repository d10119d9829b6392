"""Export in spark-arena's format: benchmark.csv, metadata.json and a copy of the recipe.

The columns are those of sparkrun 0.2.40, which holds the results of llama-benchy. A column whose definition differs
from the bench's stays empty.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_spark.bench.compare import worthless
from vllm_spark.bench.evidence import Evidence
from vllm_spark.core import paths
from vllm_spark.node.bench.records import CellRecord
from vllm_spark.recipe import loader

GROUPS = ("t_s", "t_s_req", "peak_ts", "peak_ts_req", "ttfr", "est_ppt", "e2e_ttft")
COLUMNS = ("model", "test_name", *(f"{group}_{part}" for group in GROUPS for part in ("mean", "std")))
# Column -> metric with the same definition. Their prefill subtracts an estimated latency, and ours does not; the bench
# has no peak of one second.
GENERATION = {"t_s_req": "decode", "ttfr": "first_chunk", "e2e_ttft": "first_token"}
EMPTY = {
    "pp rows": "llama-benchy subtracts an estimated latency from the time of the prompt",
    "est_ppt": "the same",
    "peak_ts, peak_ts_req": "the bench has no peak of one second",
}


def write(run: Evidence, folder: Path) -> list[str]:
    """Write the files into a folder, which is created. Returns what was written and what stays empty."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(_rows(run))
    (folder / "benchmark.csv").write_text(_csv(rows), encoding="utf-8")
    recipe = loader.names([paths.RECIPES]).get(run.run["subject"]["recipe"])
    content = recipe.read_bytes() if recipe else b""
    if recipe:
        (folder / "recipe.yaml").write_bytes(content)
    metadata = json.dumps(_metadata(run, content), indent=2, ensure_ascii=False)
    (folder / "metadata.json").write_text(f"{metadata}\n", encoding="utf-8")
    left_out = [f"{name}: left out, {reason}" for name, cell in run.cells.items() if (reason := _left_out(cell))]
    return [
        f"{folder}: benchmark.csv with {len(rows)} rows, metadata.json{', recipe.yaml' if recipe else ''}",
        *([] if recipe else ["no recipe.yaml: the run names no recipe of the catalogue"]),
        *left_out,
        *(f"{column}: empty, {why}" for column, why in EMPTY.items()),
    ]


def _left_out(cell: CellRecord) -> str:
    if reason := worthless(cell):
        return reason
    if cell["cell"]["server"]:
        return "the cell changes the server"
    return "" if "decode" in cell["figures"] else "no decode"


def _rows(run: Evidence) -> Iterator[dict[str, Any]]:
    for cell in run.cells.values():
        if _left_out(cell):
            continue
        load, streams = cell["cell"], cell["cell"]["streams"]
        depth = f" @ d{load['depth']}" if load["depth"] else ""
        many = f" (c{streams})" if streams > 1 else ""
        row: dict[str, Any] = {"model": run.run["key"]["model"], "test_name": f"tg{load['output']}{depth}{many}"}
        for group, metric in (GENERATION | {"t_s": "total" if streams > 1 else "decode"}).items():
            figure = cell["figures"].get(metric)
            if figure:
                # llama-benchy writes the population's standard deviation.
                row[f"{group}_mean"] = round(statistics.fmean(figure["values"]), 4)
                row[f"{group}_std"] = round(statistics.pstdev(figure["values"]), 4)
        yield row


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _metadata(run: Evidence, recipe: bytes) -> Mapping[str, Any]:
    record = run.run
    key, subject = record["key"], record["subject"]
    return {
        "recipe": {
            "name": subject["recipe"],
            "model": key["model"],
            "hf_model": key["model"],
            "container": key["image"],
            "container_pinned": key["image"].startswith("sha256:"),
            "runtime": "vllm",
            "registry": "",
            "hash": hashlib.sha256(recipe).hexdigest() if recipe else "",
        },
        "timing": {"started": record["started"], "seconds": run.end["seconds"] if run.end else None},
        "cluster": {"topology": key["topology"], "hosts": len(record["host"]) or None},
        "benchmark": {
            "framework": f"vllm-spark {key['toolkit']}",
            "profile": record["profile"].get("name", ""),
            "args": {},
        },
        "model": {"revision": key["commit"], "quantization": key["layout"]},
        "runtime_info": {"engine_version": subject["engine_version"], "protocol": key["protocol"]},
    }
