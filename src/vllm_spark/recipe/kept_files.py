"""Files that the flags of a recipe name in the container, and that no mount of the recipe brings. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vllm_spark.core.types import Document

# Flags whose value is a file or a folder. A name OWNER/NAME of a hub is not there either: the engine is offline.
FLAGS = (
    *("allowed-local-media-path", "chat-template", "hf-config-path", "log-config-file", "lora-modules", "tokenizer"),
    *("generation-config", "reasoning-parser-plugin", "tool-parser-plugin"),
)
# A flag of FLAGS may also have a name (auto, vllm) or a template itself.
FILE = re.compile(r"[^{}\n]*(/|\.(jinja|json|py)$)[^{}\n]*")
# A map as a text: a LoRA module is `{"name": …, "path": …}`.
NAMED = re.compile(r'"path": *"([^"]+)"')


def questions(recipe: Document) -> Iterator[tuple[str, str]]:
    """Yield (field, question) for each file that may not be in the container."""
    targets = [mount["target"] for mount in recipe.get("mounts", ())]
    for flag in FLAGS:
        for path in _paths(recipe["args"].get(flag)):
            if not any(path == target or path.startswith(f"{target.rstrip('/')}/") for target in targets):
                yield (
                    f"args.{flag}",
                    f"is {path} in the image? No mount of the recipe brings it, and the container has no network",
                )


def _paths(value: Any) -> Iterator[str]:
    """Yield the files in the value of a flag: a path, NAME=PATH, a map with `path`, or a list of these."""
    match value:
        case str() if value.startswith("{") and (named := NAMED.search(value)):
            yield named[1]
        case str() if FILE.fullmatch(value):
            yield value.rpartition("=")[2]
        case list():
            for one in value:
                yield from _paths(one)
        case dict():
            yield from _paths(value.get("path"))
