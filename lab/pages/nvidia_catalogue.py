"""docs/reference/nvidia-catalogue.md: what `recipe import` makes of each Spark recipe of NVIDIA's catalogue."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from lab.pages.markdown import table
from vllm_spark.cli import main
from vllm_spark.core import paths
from vllm_spark.recipe import loader

Row = dict[str, Any]
DATA = paths.ROOT / "tests" / "data" / "imports" / "nvidia.yml"
MASTER = '--nnodes {nodes} --node-rank {rank} --master-addr "$HEAD_IP" --master-port "$MASTER_PORT"'
HEAD = """\
# NVIDIA's catalogue

`make docs` writes this page; do not edit it. It has every recipe for DGX Spark of
[NVIDIA/local-ai-inference-recipes](https://github.com/NVIDIA/local-ai-inference-recipes) at `{commit}`, and
what `vllm-spark recipe import recipe.yaml` makes of it. The figures are those of `performance.yaml` beside it (one
stream, 8192 tokens in): `plan` prints them beside the forecast, and the bench's profile `nvidia` says whether this
Spark reaches them. *as here*: the recipe of this catalogue for the same repository. *left out* does not name the
variables and flags of a rank, which every deployment decides itself.
"""
COLUMNS = ("recipe", "Sparks", "import", "image", "as here", "decode tok/s", "prompt tok/s", "left out")


@dataclass(frozen=True)
class Outcome:
    """What an import did: its exit status, its output, and the recipes that it wrote, by name."""

    status: int
    out: str
    err: str
    recipes: dict[str, Any]


def rows() -> list[Row]:
    """Return the recipes of the catalogue, each with the setups that several share."""
    document = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return [{**row, "_setup": document["setup"]} for row in document["recipes"]]


def text() -> str:
    """Return the page."""
    commit = yaml.safe_load(DATA.read_text(encoding="utf-8"))["commit"]
    return f"{HEAD.format(commit=commit[:12])}\n{table(COLUMNS, map(_cells, rows()))}\n"


def imported(file: Path) -> Outcome:
    """Import a file into the folder `out` beside it."""
    out, err, into = io.StringIO(), io.StringIO(), file.parent / "out"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main.main(["recipe", "import", str(file), "--into", str(into)])
    recipes = {path.stem: loader.read(path).document for path in sorted(into.glob("*.yml"))}
    return Outcome(status, out.getvalue(), err.getvalue(), recipes)


def write(row: Row, folder: Path) -> Path:
    """Write recipe.yaml and performance.yaml of a row into a folder, and return the former."""
    recipe, several = row["recipe"], row["recipe"]["topology"]["node_count"] > 1
    image = row.get("setup_image", recipe["runtime"]["image"])
    setup = row["_setup"]["several" if several else "one"].replace("{image}", image).replace('"$IMAGE"', image)
    extra = "".join(f"-e {name}={value} " for name, value in row.get("setup_env", {}).items())
    setup = recipe["runtime"].get("setup_command", setup.replace("--entrypoint", f"{extra}--entrypoint"))
    prefix = "".join(f"{name}={value} " for name, value in row.get("prefix", {}).items())
    exports = "".join(f'export {name}="{value}"\n' for name, value in row.get("exports", {}).items())
    nodes = recipe["topology"]["node_count"]
    ranks = f" {MASTER.format(nodes=nodes, rank=row.get('rank_of_head', 0))}" if several else ""
    document = {
        **recipe,
        "runtime": {**recipe["runtime"], "setup_command": setup},
        "serve": {"command": f"{exports}{prefix}{row['serve']}{ranks}\n", "port": 8000},
    }
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(document, width=10_000), encoding="utf-8")
    if figures := row.get("figures"):
        # Where the figures are of another checkpoint, the recipe beside them has another text.
        own = "checkpoint" not in figures
        checksum = sha256(file.read_bytes()).hexdigest() if own else figures["recipe_sha256"]
        file.with_name("performance.yaml").write_text(yaml.safe_dump(_performance(figures, checksum)), encoding="utf-8")
    return file


def _performance(figures: Row, checksum: str) -> Row:
    load = {
        "input_tokens": figures["input"]["tokens"],
        "output_tokens": figures["output"],
        "concurrency": 1,
        "dataset": "nvidia/SPEED-Bench",
    }
    results = {
        "prefill_tokens_per_second_mean": figures["prefill"],
        "decode_tokens_per_second_mean": figures["decode"],
        "e2e_latency_ms_mean": figures["e2e_ms"],
    }
    return {
        "schema_version": 1,
        "recipe_sha256": checksum,
        "measured_at": figures["measured_at"],
        "harness": {"name": "aiperf", "version": "0.12.0"},
        "software": {name: figures[name] for name in ("model_revision", "runtime_revision")},
        "profiles": [{"id": "throughput-8k", "workload": load, "results": results}],
    }


def _cells(row: Row) -> tuple[str, ...]:
    with TemporaryDirectory() as folder:
        outcome = imported(write(row, Path(folder)))
    figures, nodes = row.get("figures", {}), row["recipe"]["topology"]["node_count"]
    shown = [str(figures.get(key, "")) for key in ("decode", "prefill")]
    if outcome.status:
        reason = re.sub(r"^\S+: ", "", outcome.err.strip()).partition(" — ")[0]
        return (f"`{row['id']}`", str(nodes), f"refused: {reason}", "", "", *shown, "")
    image = next(iter(outcome.recipes.values()))["image"]
    pin = image["digest"][7:19] if "digest" in image else "no digest"
    here = re.findall(r"the catalogue has (\S+) for", outcome.out)
    left = ", ".join(dict.fromkeys(_left_out(outcome.out)))
    return (
        f"`{row['id']}`",
        str(nodes),
        "yes",
        f"{image['repository']}:{image['tag']} ({pin})",
        *(here or [""]),
        *shown,
        left,
    )


def _left_out(out: str) -> Iterator[str]:
    """Yield the name of each thing that an import leaves out, but for what every deployment decides itself."""
    for line in re.findall(r"left out: (.*)", out):
        if not re.search("comes from|has no value|the toolkit's|a secret|the launch sets it", line):
            yield re.split(r"[ :]", line.removeprefix("--"))[0]
