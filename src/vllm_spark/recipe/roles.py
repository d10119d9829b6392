"""The role of a recipe: what its server is for. It decides flags, paths of the edge, readiness and gates. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.core.fault import Fault
from vllm_spark.core.types import Document
from vllm_spark.node.engine_api import CHAT, EMBED, PROOFS, RERANK

# The gates of a recipe that every role may configure. Each other one is that of chat, or has the name of its role.
COMMON_GATES = ("ready", "use", "log", "fabric")
# Flags that decide whether a server answers with text or with numbers, and the values that each role lets them have.
TASKS = ("runner", "convert", "task")
VALUES: Mapping[str, tuple[str, ...]] = {
    CHAT: ("auto", "generate", "none"),
    EMBED: ("auto", "none", "pooling", "embed"),
    RERANK: ("auto", "none", "pooling", "classify", "score"),
}


def of(recipe: Document) -> str:
    """Return the role of a recipe."""
    return str(recipe.get("role", CHAT))


def flags(recipe: Document) -> dict[str, Any]:
    """Return the flags that a role needs; none for chat. `--convert` stays auto: the runner and the architecture decide
    it from 0.19.1 to 0.33.0 (config/model.py, _get_default_convert_type)."""
    return {} if of(recipe) == CHAT else {"runner": "pooling"}


def task_fault(flag: str, value: object, role: str) -> Fault:
    """Return the fault of a flag of `TASKS` that contradicts a role."""
    expected = f"auto, or role: {EMBED} or {RERANK}" if role == CHAT else f"one of {', '.join(VALUES[role])}"
    return Fault(f"args.{flag}: {str(value)[:80]!r} beside the role {role}", expected)


def faults(document: Document) -> Iterator[Fault]:
    """Yield what contradicts the role in a recipe that passed its schema, with or without a deployment's overrides."""
    role, gates, args = of(document), document.get("gates", {}), document["args"]
    yield from (task_fault(flag, args[flag], role) for flag in TASKS if args.get(flag, "auto") not in VALUES[role])
    foreign = [name for name in gates if name in PROOFS and name != role]
    if role != CHAT:
        foreign += [name for name in gates if name not in (*COMMON_GATES, *PROOFS)]
        if role not in gates:
            yield Fault(f"gates.{role}: absent beside the role {role}", f"gates.{role}, which proves it")
    for name in foreign:
        yield Fault(f"gates.{name}: a gate that the role {role} has not", f"{', '.join(COMMON_GATES)} or {role}")
    if role != CHAT and "drafter" in document:
        yield Fault(f"drafter: beside the role {role}", "no drafter, because the engine generates nothing")
