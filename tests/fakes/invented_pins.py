"""Invented pins of a lock file, for what a recipe leaves to `lock`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllm_spark.core.types import Document
from vllm_spark.recipe import lockfile, wheels

PINS = {"image": f"sha256:{'d' * 64}", "model": "e" * 40, "file": "f" * 64}


def lock_of(document: Document) -> dict[str, dict[str, Any]]:
    """Return the blocks of a lock file that pin everything that this recipe does not."""
    images: dict[str, Any] = {}
    models: dict[str, Any] = {}
    packages: dict[str, Any] = {}
    for ref in lockfile.unpinned_refs(document):
        match ref.kind:
            case "image":
                images[ref.key] = {"digest": PINS["image"]}
            case "model":
                models.setdefault(ref.key, {})["revision"] = PINS["model"]
            case "packages":
                lines = [f"{wheels.normal(pin)} --hash=sha256:{PINS['file']}" for pin in ref.pins]
                packages[ref.key] = {"wheels": lines}
            case _:
                models.setdefault(ref.key, {}).setdefault("files", {})[ref.path] = PINS["file"]
    return {"images": images, "models": models, "packages": packages}


def write_lock(document: Document, file: Path) -> Path:
    """Write that lock file, and return its path."""
    file.write_text(json.dumps(lock_of(document)), encoding="utf-8")
    return file
