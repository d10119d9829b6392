"""The rows of tests/data/imports as the files that an owner has, and what an import of them is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lab.pages import nvidia_catalogue
from lab.pages.nvidia_catalogue import Outcome
from project_files import DATA

Row = dict[str, Any]
KINDS = ("nvidia", "registries", "files", "lines")
FOLDER = DATA / "imports"


def rows(name: str) -> list[Row]:
    """Return the rows of a file of the folder."""
    if name == "nvidia":
        return nvidia_catalogue.rows()
    found: list[Row] = yaml.safe_load((FOLDER / f"{name}.yml").read_text(encoding="utf-8"))
    return found


def run(row: Row, kind: str, folder: Path) -> Outcome:
    """Write the row's file into a folder and import it."""
    writes = {"nvidia": nvidia_catalogue.write, "registries": _registry, "files": _file, "lines": _line}
    return nvidia_catalogue.imported(writes[kind](row, folder))


def _registry(row: Row, folder: Path) -> Path:
    file = folder / Path(row["source"].get("path", "recipe.yaml")).name
    file.write_text(yaml.safe_dump(row["recipe"], width=10_000, sort_keys=False), encoding="utf-8")
    return file


def _file(row: Row, folder: Path) -> Path:
    for name, content in {row["name"]: row["text"], **row.get("beside", {})}.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder / row["name"]


def _line(row: Row, folder: Path) -> Path:
    file = folder / f"{row['id'].lower()}.sh"
    env = " ".join(f"-e {name}='{value}'" for name, value in row["env"].items())
    exports = "".join(f"export {name}='{value}'\n" for name, value in row["env"].items())
    launch = (
        f"docker run --gpus all {env} {row['image']} {row['command']}" if row["image"] else exports + row["command"]
    )
    file.write_text(f"#!/bin/bash\n{launch}\n", encoding="utf-8")
    return file


def faults(row: Row, outcome: Outcome) -> list[str]:
    """Return what of an outcome is not as the row expects it. Either side of an `either` is right."""
    expected = row["expected"]
    if outcome.status and expected["outcome"] in ("refused", "either"):
        return [] if " Fix: " in outcome.err else ["a refusal without a fix"]
    if outcome.status:
        also = [f"refused: {outcome.err}"]
        return [] if "refused" in str(expected.get("also_right", "")) else also
    if expected["outcome"] == "refused" and "import" not in str(expected.get("also_right", "")):
        return ["written, where a refusal is right"]
    if "recipes" in expected:
        return list(_of_services(expected["recipes"], outcome))
    wanted = {**expected, **expected.get("import", {})}
    return list(_of_recipe(wanted, next(iter(outcome.recipes.values())), outcome.out))


def _of_services(wanted: list[Row], outcome: Outcome) -> Iterator[str]:
    for one in wanted:
        found = [recipe for recipe in outcome.recipes.values() if recipe["model"]["repository"] == one.get("model")]
        if "refused" in one:
            yield from () if one["service"] in outcome.out else [f"{one['service']} is not named"]
        elif len(found) == 1:
            yield from _of_recipe(one, found[0], outcome.out)
        else:
            yield f"{one['service']}: {len(found)} recipes of {one['model']} in {sorted(outcome.recipes)}"


def _of_recipe(wanted: Row, recipe: Any, out: str) -> Iterator[str]:
    model, image = recipe["model"], recipe["image"]
    args, env, drafter = recipe["args"], recipe.get("env", {}), recipe.get("drafter", {})
    seen: dict[str, Any] = {
        "image": image["repository"],
        "tag": image["tag"],
        "digest": image.get("digest"),
        "model": model["repository"],
        "revision": model.get("revision"),
        "nodes": recipe["topology"]["nodes"],
    }
    yield from (
        f"{key}: {seen[key]}, wanted {wanted[key]}" for key in seen if key in wanted and seen[key] != wanted[key]
    )
    for flag, value in wanted.get("args", {}).items():
        if args.get(flag) != value:
            yield f"args.{flag}: {args.get(flag)}, wanted {value}"
    replaced = "left out: container" in out
    for name, value in wanted.get("env", {}).items():
        # A variable of an image that is not taken over is named instead.
        if env.get(name) != value and not (replaced and f"env.{name}: unknown variable" in out):
            yield f"env.{name}: {env.get(name)}, wanted {value}"
    if "drafter" in wanted:
        flat = {**drafter, "method": drafter.get("config", {}).get("method")}
        yield from (
            f"drafter.{key}: {flat.get(key)}" for key, value in wanted["drafter"].items() if flat.get(key) != value
        )
    for key, value in wanted.get("memory", {}).items():
        if recipe["memory"].get(key, 1) > value:
            yield f"memory.{key}: {recipe['memory'].get(key)}, wanted {value}"
    said = out.replace("_", "-")
    for entry in [*wanted.get("left_out", ()), *wanted.get("env_left_out", ())]:
        name = entry.split()[0].removeprefix("env.").removeprefix("--")
        if name in args or name in env:
            yield f"{name} is not left out"
        if name.replace("_", "-") not in said and name not in DEPLOYMENT:
            yield f"{name} is not named"
    for name in (wanted.get("known_in_catalogue"), *wanted.get("open", ()), *wanted.get("named", ())):
        if name and " " not in name and name.replace("_", "-") not in said:
            yield f"{name} is not named"


# What every deployment decides itself, so that no line says it.
DEPLOYMENT = {
    "host",
    "port",
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
    "headless",
    "distributed-executor-backend",
}
