"""The task of a model: what the engine serves its files for.

vLLM takes a pooling layer of sentence-transformers for an embedding model whatever its architecture is, and asks the
architecture otherwise (_get_default_runner_type in config/model.py of 0.33.0). `make engine-flags` writes its tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from vllm_spark.authoring.source import Source, bad_file
from vllm_spark.core import paths, text
from vllm_spark.core.refusal import Refusal, RefusedError, register

ANOTHER_TASK = register("another-task", runbook="recipe-new")

Name = Literal["chat", "embed", "rerank", "classify", "transcribe", "draft"]

FILE = paths.RECIPES / "tasks.json"

MODULES, SENTENCES = "modules.json", "config_sentence_transformers.json"
# Words of a repository's name. A reranker made of a chat model has the chat model's files and no others.
NAMED: Mapping[Name, re.Pattern[str]] = {
    "rerank": re.compile(r"(?i)(?<![a-z])rerank"),
    "embed": re.compile(r"(?i)(?<![a-z])embed"),
}
WORDS: Mapping[Name, str] = {
    "embed": "embeddings",
    "rerank": "the order of search results",
    "classify": "labels of texts",
    "transcribe": "transcripts of speech",
    "draft": "drafts of another model's tokens",
}


# What a role for the task would need beside its gate.
MISSING: Mapping[Name, str] = {
    "transcribe": ". vLLM needs its packages vllm[audio] for it, and neither the edge nor a gate knows its path",
}


@dataclass(frozen=True, slots=True)
class Task:
    """`why` says what of the files tells the task; it is empty for chats."""

    name: Name
    why: str = ""


CHAT = Task("chat")


def of(source: Source, config: Mapping[str, Any]) -> Task:
    """Return the task of a model. Raises RefusedError for a modules.json that is no list."""
    pooling = any(kind.endswith(".Pooling") for kind, _ in layers(source))
    crossed = SENTENCES in source.files and '"CrossEncoder"' in source.text(SENTENCES)
    if crossed:
        return Task("rerank", f"{SENTENCES} names a CrossEncoder")
    if pooling:
        return Task("embed", f"{MODULES} has a pooling layer")
    listed = config.get("architectures")
    for architecture in listed if isinstance(listed, list) else ():
        name = of_architecture(str(architecture))
        if name != "chat":
            named = config.get("id2label")
            one_label = config.get("num_labels") == 1 or (isinstance(named, Mapping) and len(named) == 1)
            sorts = one_label or of_name(source.repository) == "rerank"
            name = "rerank" if name == "classify" and sorts else name
            return Task(name, f"its architecture is {text.one_line(str(architecture))}")
    named = of_name(source.repository)
    return Task(named, "its name says so") if named != CHAT.name else CHAT


def of_name(repository: str) -> Name:
    """Return the task that a repository's name says."""
    return next((name for name, word in NAMED.items() if word.search(repository)), CHAT.name)


def of_architecture(architecture: str) -> Name:
    """Return the task for which the newest engine that is known serves an architecture."""
    tables = _tables()
    suffixes: Iterable[tuple[str, Name]] = tables["suffixes"]
    listed: Mapping[str, Name] = tables["architectures"]
    by_suffix = next((name for suffix, name in suffixes if architecture.endswith(suffix)), CHAT.name)
    return listed.get(architecture, by_suffix)


@cache
def _tables() -> Any:
    return json.loads(FILE.read_text(encoding="utf-8"))


def refusal(name: str, task: Task) -> Refusal:
    """Return the refusal of a model of a task that no role serves."""
    return ANOTHER_TASK(
        what=f"{name} is a model for {WORDS[task.name]}, which no role serves: {task.why}{MISSING.get(task.name, '')}",
        expected="a model of the role chat, embed or rerank, whose answers a gate can judge",
        fix="name such a model. The toolkit serves no other task; vLLM itself does, beside a recipe with less memory.",
    )


def layers(source: Source) -> list[tuple[str, str]]:
    """Return (type, folder) of the layers that sentence-transformers puts around a model. Raises RefusedError."""
    if MODULES not in source.files:
        return []
    try:
        found = json.loads(source.text(MODULES))
    except (ValueError, RecursionError) as error:
        raise RefusedError([bad_file(source.name, MODULES, f"is not JSON ({error})")]) from error
    entries = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [(str(one.get("type")), str(one.get("path", ""))) for one in entries]
