"""What an import makes of public files, against the parser of the engine that the recipe names."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import engine_process
import environments
import launches
import pytest

from fakes import import_rows
from vllm_spark.recipe import kept_files

# A fault of the file itself, which `check` has to see (tests/lab/test_imports.py).
UNSEEN = {
    "a07-mamba-block-no-prefix": "--mamba-block-size without prefix caching",
    # Of these the engine compares fields of the drafter's config.json, which models.yml does not have.
    "a05-issue53836": "the config.json of the drafter is not described",
    "nemotron-3.5-lightning-1x": "the config.json of the drafter is not described",
}


@cache
def imports() -> dict[str, dict[str, Any]]:
    """Return the recipes of all public files, each under the id of its row."""
    found = {}
    for kind in import_rows.KINDS:
        for row in import_rows.rows(kind):
            if row.get("held"):
                continue
            with TemporaryDirectory() as folder:
                recipes = import_rows.run(row, kind, Path(folder)).recipes
            for name, recipe in recipes.items():
                ident = row["id"] if len(recipes) == 1 else f"{row['id']}: {name}"
                found[ident] = {**recipe, "name": ident}
    return found


def engine_of(recipe: dict[str, Any]) -> str:
    """Return the engine that judges a recipe: of its release, or of the next one with a parser here."""
    release = environments.release_of(recipe["engine"]["version"])
    numbers = tuple(map(int, release.split(".")))
    return next(one for one in environments.ENGINES if tuple(map(int, one.split("."))) >= numbers)


@cache
def faults() -> dict[str, list[str]]:
    """Return id -> what its engine says of the launches. Each engine is asked once."""
    asked: dict[str, list[dict[str, Any]]] = {}
    for recipe in imports().values():
        # Which file a flag names is an open question of the import.
        open_ = {field.partition(".")[2] for field, _ in kept_files.questions(recipe)}
        recipe["args"] = {flag: value for flag, value in recipe["args"].items() if flag not in open_}
        asked.setdefault(engine_of(recipe), []).extend(launches.of_recipe(recipe))
    told: dict[str, list[str]] = {}
    for version, wanted in asked.items():
        lines = "\n".join(json.dumps(one) for one in wanted)
        for verdict in map(json.loads, engine_process.output(version, "check_argv.py", lines=lines).splitlines()):
            # The engine judges the words of any model, and the drafter of the models that models.yml describes.
            own = [
                fault for fault in verdict["faults"] if not fault.startswith("no pattern of tests/engine/models.yml")
            ]
            told.setdefault(verdict["id"].partition(" on ")[0], []).extend(own)
    return told


@pytest.mark.parametrize("ident", sorted(imports()))
def test_the_engine_takes_an_import(ident: str) -> None:
    if ident in UNSEEN:
        pytest.xfail(UNSEEN[ident])
    assert faults()[ident] == []
