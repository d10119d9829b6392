"""A recipe `mine` with an entry of `evidence`: its file, its report, and what they were measured with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from fakes.bench_runs import END, KEY, SUBJECT, cell_record, run_record, text
from vllm_spark.recipe import loader

BASE = loader.load("gemma-4-26b-a4b-fp8").document
IMAGE = f"{BASE['image']['repository']}@{BASE['image']['digest']}"
OWN_KEY = KEY | {
    "model": BASE["model"]["repository"],
    "commit": BASE["model"]["revision"],
    "layout": "attention=fp8 experts=fp8 head=bf16 mlp=fp8",
    "image": IMAGE,
}
OWN_SUBJECT = SUBJECT | {"recipe": "mine", "engine_version": BASE["engine"]["version"]}
GB10 = {"spark-1": {"gpu": "NVIDIA GB10"}}
PATH = "recipes/evidence/run.jsonl"
WHY = "measured so for a reason"


def folder(root: Path, entry: dict[str, Any] | None = None, content: str | None = None, **run: Any) -> Path:
    """Write a recipe `mine` with an entry of evidence, its file and its report. Returns the folder of the recipe."""
    recipes = root / "recipes"
    (recipes / "evidence").mkdir(parents=True)
    document = copy.deepcopy(dict(BASE)) | {"name": "mine"}
    document["evidence"] = [{"bench": [PATH], "report": "recipes/evidence/run.html"} | (entry or {})]
    (recipes / "mine.yml").write_text(yaml.safe_dump(document))
    record = run_record(**{"key": OWN_KEY, "subject": OWN_SUBJECT, "host": GB10} | run)
    cell = cell_record({"decode": [6.9], "first_chunk": [350.0], "prefill": [1500.0]})
    (root / PATH).write_text(text(record, cell, END) if content is None else content)
    (recipes / "evidence" / "run.html").write_text(f"<td>{record['id']}</td>")
    return recipes
