"""Run verbs and print the files of `src` that they open, as JSON: `python tests/files_of_verbs.py FOLDER`.

FOLDER is an empty folder for what the verbs write. An audit hook sees each file that Python opens. It cannot be removed
again, so this is a program of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
from pathlib import Path

from vllm_spark.bench import profiles, reported
from vllm_spark.cli.main import main
from vllm_spark.core import paths
from vllm_spark.core.version import version
from vllm_spark.inventory import spec, topology
from vllm_spark.node.bench import corpora
from vllm_spark.recipe import lockfile

OPENED: set[str] = set()
SOURCE = str(paths.ROOT / "src")
RECIPE = "gemma-4-26b-a4b-fp8"
EVIDENCE = paths.RECIPES / "evidence" / "h200-bench" / "26b-a4b-fp8.standard.jsonl"
LOG = paths.RECIPES / "evidence" / "gemma-4-31b-fp8-tp2" / "vllm-port-taken.log"


def note(event: str, arguments: tuple[object, ...]) -> None:
    """Keep the path of a file that is opened below `src`."""
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        path = os.path.abspath(os.fspath(arguments[0]))
        if isinstance(path, str) and path.startswith(SOURCE):
            OPENED.add(os.path.relpath(path, paths.ROOT))


def verbs(folder: Path) -> None:
    """Do what reads data: commands, version, spec of a host, topology, lock file; profiles, prompts and reports."""
    report, lock = folder / "report.html", folder / "lock.yml"
    lock.write_text(lockfile.text(lockfile.Lock()), encoding="utf-8")
    compose = folder / "compose.yml"
    compose.write_text("services: {a: {image: vllm/vllm-openai:v0.30.0, command: [--model, a/b]}}\n", encoding="utf-8")
    for words in (
        ["recipes"],
        ["plan", RECIPE],
        ["plan", RECIPE, "--sparks", "4"],
        ["check", str(paths.RECIPES / f"{RECIPE}.yml")],
        ["render", RECIPE, "--lock", str(lock)],
        ["doctor", str(LOG)],
        ["recipe", "import", str(compose), "--into", str(folder / "out")],
        ["bench", "report", str(EVIDENCE), "-o", str(report)],
    ):
        main(words)
    version()
    inventory = spec.Inventory(
        deployments=[{"name": "demo", "recipe": RECIPE, "hosts": ["spark1"]}],
        sparks=("spark1",),
        limit=("spark1",),
        recipe_folders=(paths.RECIPES,),
        edge={"open": True},
        notification={"command": ["/bin/true"]},
    )
    spec.resolve(inventory, "spark1")
    three = ["a", "b", "c"]
    topology.parse({"fabric": "triangle", "sparks": three}, three, three, [])
    for name in profiles.names():
        profiles.load(name)
    reported.load()
    for name in corpora.CLASSES:
        corpora.lines(name)
    corpora.filled("{town}", random.Random(1))  # noqa: S311


if __name__ == "__main__":
    sys.addaudithook(note)
    with contextlib.redirect_stdout(io.StringIO()):
        verbs(Path(sys.argv[1]))
    json.dump(sorted(OPENED), sys.stdout)
