"""Recipes of sparkrun, version 2, as recipes of this toolkit, as far as they say the same. Pure.

A recipe of sparkrun is a model, a container, defaults, and a command with places for the defaults. The flags of the
command are taken over in the engine's spelling. What has no counterpart here is named and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.authoring import composing, sparkrun_command
from vllm_spark.authoring.composing import FLOOR_BYTES, UTILIZATION
from vllm_spark.authoring.sparkrun_command import NOT_SPARKRUN
from vllm_spark.core import text
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.core.types import Document
from vllm_spark.recipe import engine_arguments, flag_names, rules, variable_owners

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
RUNTIMES = ("vllm", "vllm-ray", "vllm-distributed", "eugr-vllm")
# The same as this toolkit's own decision, so that nothing is lost if it is not taken over.
OWN = {
    "host": "the deployment's bind",
    "port": "the deployment's port",
    "distributed-executor-backend": "topology.executor",
    "served-model-name": "model.served_name",
    "tensor-parallel-size": "topology",
    "gpu-memory-utilization": "memory.utilization",
    "speculative-config": "drafter",
}
MOST_NODES = 2
# Keys that are read, or say nothing that a recipe here could.
READ = {
    *("recipe_version", "name", "description", "model", "model_revision", "runtime", "runtime_version", "container"),
    *("metadata", "defaults", "env", "command", "min_nodes", "max_nodes", "mode", "solo_only", "cluster_only"),
}


@dataclass(slots=True)
class Imported:
    """A recipe without image digest and gates of its model, and what was left out, each with its reason."""

    recipe: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def is_sparkrun(document: object) -> bool:
    """Return True for a recipe of sparkrun's form."""
    return isinstance(document, Mapping) and "model" in document and ("runtime" in document or "container" in document)


def convert(document: Document, name: str, base: Document, origin: str) -> Imported:
    """Return the recipe. `base` has the image and engine to use. `origin` is its file, for `sources`.

    Raises RefusedError for another engine, another number of Sparks, or a model that is not of the hub.
    """
    model = str(document["model"])
    refusal = _refusal(document, model)
    if refusal:
        raise RefusedError([refusal])
    result = Imported()
    flags = dict(sparkrun_command.flags(document, result.left_out))
    defaults = document.get("defaults") or {}
    nodes = _nodes(document, flags, defaults)
    args = {flag: value for flag, value in flags.items() if flag not in rules.PLANNED_FLAGS}
    for flag in sorted(set(flags) & set(rules.PLANNED_FLAGS) - set(OWN)):
        result.left_out.append(f"--{flag}: comes from {rules.PLANNED_FLAGS[flag]}")
    if args.pop("trust-remote-code", None):
        result.left_out.append(
            "--trust-remote-code: it runs Python of the checkpoint; add it to args if the model needs it"
        )
    if "/" not in str(args.get("chat-template", "/")):
        result.left_out.append(
            f"--chat-template {text.one_line(str(args.pop('chat-template')))}: its file is not in the recipe"
        )
    revision = document.get("model_revision")
    pinned = {"revision": revision} if isinstance(revision, str) and COMMIT.fullmatch(revision) else {}
    if revision and not pinned:
        result.left_out.append(f"model_revision {text.one_line(str(revision))}: not a commit; lock.yml resolves one")
    result.recipe = {
        "schema_version": 1,
        "name": name,
        "summary": f"{model} as a recipe of sparkrun serves it, imported",
        "sources": [f"{origin}: {_description(document)}"],
        "image": base["image"],
        "engine": base["engine"],
        "model": {"repository": model, **pinned, "served_name": _served(flags, model)},
        **_drafter(flags.get("speculative-config"), model, pinned, result),
        **_env(document.get("env"), result),
        "args": dict(sorted(args.items())),
        "topology": {"nodes": nodes, "tensor_parallel": nodes, "executor": "uni" if nodes == 1 else "mp"},
        "memory": {"utilization": _utilization(flags, result), "free_floor_bytes": FLOOR_BYTES},
        "runtime": {"shm_size": "16g"},
        "gates": _gates(args, nodes),
    }
    result.left_out += _rest(document, base)
    return result


def _refusal(document: Document, model: str) -> Refusal | None:
    runtime = str(document.get("runtime", "vllm"))
    shapes = {"defaults": Mapping, "env": Mapping, "metadata": Mapping, "command": str, "min_nodes": int}
    odd = [key for key, kind in shapes.items() if document.get(key) is not None and not isinstance(document[key], kind)]
    if odd:
        what, fix = f"{odd[0]}: {text.one_line(str(document[odd[0]]))}", "correct it in the file."
    elif runtime not in RUNTIMES:
        what, fix = f"runtime {text.one_line(runtime)}", "choose a recipe for vLLM."
    elif not REPOSITORY.fullmatch(model):
        what, fix = f"model {text.one_line(model)}", "name the repository of the hub in `model`."
    elif int(document.get("min_nodes") or 1) > MOST_NODES:
        what, fix = f"min_nodes {document['min_nodes']}", "choose a recipe for one Spark or two."
    else:
        return None
    return NOT_SPARKRUN(
        what=what, expected=f"a recipe of sparkrun for vLLM ({', '.join(RUNTIMES)}), one Spark or two", fix=fix
    )


def _nodes(document: Document, flags: Mapping[str, Any], defaults: Mapping[str, Any]) -> int:
    asked = flags.get("tensor-parallel-size", defaults.get("tensor_parallel", 1))
    least = document.get("min_nodes") or (2 if document.get("cluster_only") else 1)
    return min(MOST_NODES, max(int(asked) if isinstance(asked, int) else 1, int(least)))


def _served(flags: Mapping[str, Any], model: str) -> str:
    named = flags.get("served-model-name")
    first = named[0] if isinstance(named, list) and named else named
    good = isinstance(first, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", first)
    return str(first) if good else composing.recipe_name(model)


def _drafter(config: Any, model: str, pinned: Mapping[str, str], result: Imported) -> dict[str, Any]:
    if not isinstance(config, dict):
        return {}
    config = dict(config)
    tokens, repository = config.pop("num_speculative_tokens", None), config.pop("model", None)
    revision = config.pop("revision", None)
    if not isinstance(tokens, int) or (repository and not REPOSITORY.fullmatch(str(repository))):
        result.left_out.append("--speculative-config: its drafter or its number of tokens is not known here")
        return {}
    own = {"revision": revision} if isinstance(revision, str) and COMMIT.fullmatch(revision) else {}
    block = {"repository": repository, **own} if repository else {"repository": model, **pinned}
    return {"drafter": {**block, "speculative_tokens": tokens, **({"config": config} if config else {})}}


def _env(env: Any, result: Imported) -> dict[str, Any]:
    kept = {}
    for name, value in (env or {}).items():
        if fault := variable_owners.fault(str(name)):
            result.left_out.append(f"{fault.what}; expected: {fault.expected}")
        else:
            kept[str(name)] = str(value)
    return {"env": kept} if kept else {}


def _utilization(flags: Mapping[str, Any], result: Imported) -> float:
    asked = flags.get("gpu-memory-utilization")
    if not isinstance(asked, int | float) or isinstance(asked, bool) or not 0 < asked < 1:
        return UTILIZATION
    if asked > UTILIZATION:
        result.left_out.append(
            f"gpu_memory_utilization {asked}: the recipe has {UTILIZATION}, above which hosts lost processes"
        )
    return min(float(asked), UTILIZATION)


def _gates(args: Mapping[str, Any], nodes: int) -> dict[str, Any]:
    gates: dict[str, Any] = {
        "ready": {"deadline_s": composing.DEADLINES_S[nodes]},
        "use": {"no-unknown-variable": True},
    }
    gates |= {"fabric": {"network": "IB"}} if nodes > 1 else {}
    gates |= {"failover": {}, "garbage": {}, "structured": {}}
    return (
        gates
        | ({"tools": {}} if "tool-call-parser" in args else {})
        | ({"reasoning": {}} if "reasoning-parser" in args else {})
    )


def _description(document: Document) -> str:
    metadata = document.get("metadata")
    described = metadata.get("description") if isinstance(metadata, Mapping) else None
    return text.one_line(str(described or document["model"]))


def _rest(document: Document, base: Document) -> Iterator[str]:
    """Yield what of the recipe has no counterpart here."""
    image = f"{base['image']['repository']}:{base['image']['tag']}"
    container = str(document.get("container", ""))
    if container and container != image:
        yield f"container {text.one_line(container)}: the recipe has {image}, pinned; --like RECIPE takes another"
    reasons = {
        "containers": "a deployment has one image",
        "mods": "they change files of the engine; image.derive and patches do this with a checksum",
        "pre_exec": "commands in the container before the start",
        "post_exec": "commands after the start; gates prove the server",
        "post_commands": "commands on the operator's machine",
        "builder": "an image is pinned by digest and not built",
        "executor_config": "runtime of this recipe",
        "benchmark": "vllm-spark bench has profiles",
    }
    yield from (f"{key}: {reason}" for key, reason in reasons.items() if document.get(key))
    yield from (f"{text.one_line(str(key))}: not known here" for key in document if key not in READ | set(reasons))


def without_unknown(imported: Imported) -> None:
    """Leave out the flags and variables that the engine does not take, each with the engine's reason."""
    recipe = imported.recipe
    engine = flag_names.engine_of(recipe["engine"]["version"])
    args = flag_names.canonical(recipe["args"], engine)
    for name, value in list(args.items()):
        for fault in engine_arguments.flag_faults(name, value, engine):
            imported.left_out.append(f"--{name}: {fault.what}; expected: {fault.expected}")
            args.pop(name, None)
    recipe["args"] = dict(sorted(args.items()))
    for name, value in list(recipe.get("env", {}).items()):
        for fault in engine_arguments.variable_faults(name, value, engine):
            imported.left_out.append(f"{fault.what}; expected: {fault.expected}")
            recipe["env"].pop(name, None)
    if not recipe.get("env", {}):
        recipe.pop("env", None)
