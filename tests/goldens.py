"""Writes tests/cases/argv-RECIPE.json for the recipes of the catalogue: look at the diff before you commit it.

python tests/goldens.py [RECIPE…]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "unit"))

import test_cases  # noqa: E402  the driver of the cases knows what they hold

from vllm_spark.core import paths  # noqa: E402
from vllm_spark.deploy import launch, ranks  # noqa: E402
from vllm_spark.inventory import spec  # noqa: E402
from vllm_spark.inventory.spec import Spec  # noqa: E402
from vllm_spark.preflight import checks  # noqa: E402
from vllm_spark.recipe import loader, lockfile  # noqa: E402

# What a lock file would say, made up: a golden shows where it goes.
DIGEST = f"sha256:{'d' * 64}"
REVISION = "e" * 40
CHECKSUM = "f" * 64


def case(name: str) -> dict[str, Any]:
    """The case of one recipe: placed as `demo` on as many Sparks as it is for, with what it leaves open locked."""
    document = loader.load(name).document
    hosts = ["spark1", "spark2"][: document["topology"]["nodes"]]
    made: dict[str, Any] = {"deployments": [{"name": "demo", "recipe": name, "hosts": hosts}], "secrets": {}}
    if len(hosts) > 1:
        made |= {"limit": hosts}
    made |= locked_as(document)
    return made | {"facts": there(made)}


def there(made: dict[str, Any]) -> dict[str, Any]:
    """Facts of boxes that hold the models at their commits, and the files that are mounted from them."""
    head = resolved(made)["spark1"]
    mounts = [mount for mount in head.recipe.get("mounts", []) if mount["from"] == "model"]
    facts: dict[str, Any] = {"paths": dict.fromkeys(checks.model_folders(head), True)}
    if mounts:
        facts["checksums"] = {spec.mount_source(head, mount): mount["sha256"] for mount in mounts}
    return facts


def resolved(made: dict[str, Any]) -> dict[str, Spec]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lock.yml"
        file.write_text(json.dumps({"images": made.get("lock", {}), "models": made.get("lock_models", {})}))
        return test_cases.resolved(made, "spark1", file)


def locked_as(document: loader.Document) -> dict[str, Any]:
    images: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for opened in lockfile.unpinned_refs(document):
        if opened.kind == "image":
            images[opened.key] = {"digest": DIGEST}
        elif opened.kind == "model":
            models.setdefault(opened.key, {})["revision"] = REVISION
        else:
            models.setdefault(opened.key, {}).setdefault("files", {})[opened.path] = CHECKSUM
    return {key: table for key, table in (("lock", images), ("lock_models", models)) if table}


def argv(made: dict[str, Any]) -> list[str]:
    """The head's argv."""
    facts = json.loads((test_cases.DATA / "facts" / "spark.json").read_text())
    specs = resolved(made)
    with tempfile.TemporaryDirectory() as folder:
        boxes = test_cases.boxes_of(made, specs, facts, Path(folder))
    head = ranks.join(specs, boxes)["spark1"]
    return [word.replace(launch.fingerprint(head), "{fingerprint}") for word in launch.argv(head)]


def main() -> None:
    for name in sys.argv[1:] or loader.names([paths.RECIPES]):
        made = case(name)
        made["expect"] = {"argv": argv(made)}
        (HERE / "cases" / f"argv-{name}.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
