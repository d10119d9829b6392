"""Recipes of sparkrun, version 2, as recipes of this toolkit, as far as they say the same. Pure.

A recipe of sparkrun is a model, a container, defaults, and a command with places for the defaults. The flags of the
command are taken over in the engine's spelling. What has no counterpart here is named and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from vllm_spark.authoring import composing, family, least_size, refused_values, sparkrun_flags
from vllm_spark.authoring.composing import UTILIZATION
from vllm_spark.authoring.model_facts import Question
from vllm_spark.authoring.sparkrun_flags import NOT_SPARKRUN
from vllm_spark.core import text
from vllm_spark.core.container_layout import CACHE_IN_CONTAINER, SCRATCH_IN_CONTAINER
from vllm_spark.core.refusal import Refusal, RefusedError, register
from vllm_spark.core.types import Document
from vllm_spark.recipe import engine_arguments, flag_names, flag_ranges, kept_files, known_issues, rules
from vllm_spark.recipe.engine_flags import Engine
from vllm_spark.recipe.lockfile import COMMIT
from vllm_spark.sizing import reference_spark
from vllm_spark.sizing.memory import DEFAULT_FLOOR_BYTES

BAD_IMPORT = register("bad-import", runbook="recipe-new")

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
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
    "kv-cache-memory-bytes": "memory.kv_cache_bytes",
}
MOST_NODES = 2
# The largest share that a recipe may name (recipes/schema.json).
MOST_UTILIZATION = 0.95
# Flags of vllm-omni, which serves with the same command. Its recipes do not all name --omni.
OMNI = re.compile("omni|cfg-parallel-size|num-gpus|ulysses-degree|use-hsdp|usp|vae-.*")
# A path below the folders in which nothing of a recipe's author is.
OWN_PATH = re.compile(rf"(?:{CACHE_IN_CONTAINER}|{SCRATCH_IN_CONTAINER})(?:/[\w-][\w.-]*)*/?")
# Keys that are read, or say nothing that a recipe here could.
READ = {
    *("recipe_version", "name", "description", "model", "model_revision", "runtime", "runtime_version", "container"),
    *("metadata", "defaults", "env", "command", "min_nodes", "max_nodes", "mode", "solo_only", "cluster_only"),
}


@dataclass(slots=True)
class Imported:
    """A recipe, what was left out, each with its reason, and what its owner must answer."""

    recipe: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


def is_sparkrun(document: object) -> bool:
    """Return True for a recipe of sparkrun's form."""
    return isinstance(document, Mapping) and "model" in document and ("runtime" in document or "container" in document)


def convert(document: Document, name: str, base: Document, file: Path) -> Imported:
    """Return the recipe. `base` has the image and engine to use. `file` is the one that its owner wrote.

    Raises RefusedError for another engine, another number of Sparks, a model that is not of the hub, a server whose
    answers no gate can prove, and for anything else that `check` would refuse.
    """
    model = str(document["model"])
    refusal = _refusal(document, model)
    if refusal:
        raise RefusedError([refusal])
    result = Imported()
    engine = flag_names.engine_of(base["engine"]["version"])
    flags = _flags(document, engine, result)
    _refuse_other_servers(flags)
    nodes = _nodes(document, flags, result)
    _refuse_too_large(model, nodes)
    args, pinned = _args(flags, result), _pinned(document, result)
    result.recipe = {
        "schema_version": 1,
        "name": name,
        "summary": f"{model} as a recipe of sparkrun serves it, imported",
        "sources": [f"{file.name}: {_description(document)}"],
        "image": base["image"],
        "engine": base["engine"],
        "model": {"repository": model, **pinned, "served_name": _served(flags, model)},
        **_drafter(flags.get("speculative-config"), model, pinned, result),
        "env": {str(name): str(value) for name, value in (document.get("env") or {}).items()},
        "args": args,
        "topology": composing.topology(nodes),
        "memory": _memory(flags, result),
        "runtime": {"shm_size": "16g"},
        "gates": composing.gates(args, nodes),
    }
    result.recipe = composing.with_additions(result.recipe, family.additions(model))
    _leave_out_refused(result, file)
    _leave_out_paths(document.get("env") or {}, result)
    result.recipe["args"] = dict(sorted(result.recipe["args"].items()))
    result.left_out += _rest(document, base)
    result.questions += _questions(result.recipe)
    return result


def _args(flags: Mapping[str, Any], result: Imported) -> dict[str, Any]:
    """Return the flags that a recipe states itself."""
    args = {flag: value for flag, value in flags.items() if flag not in rules.PLANNED_FLAGS}
    for flag in sorted(set(flags) & set(rules.PLANNED_FLAGS) - set(OWN)):
        result.left_out.append(f"--{flag}: comes from {rules.PLANNED_FLAGS[flag]}")
    if args.pop("trust-remote-code", None):
        result.left_out.append(
            "--trust-remote-code: it runs Python of the checkpoint; add it to args if the model needs it"
        )
    if not set("/{") & set(str(args.get("chat-template", "/"))):
        template = text.one_line(str(args.pop("chat-template")))
        result.left_out.append(f"--chat-template {template}: its file is not in the recipe")
    return args


def _pinned(document: Document, result: Imported) -> dict[str, str]:
    """Return the key `revision` of the model; nothing if the recipe names no commit."""
    revision = document.get("model_revision")
    if isinstance(revision, str) and COMMIT.fullmatch(revision):
        return {"revision": revision}
    if revision:
        result.left_out.append(
            f"model_revision {text.one_line(str(revision))}: not a commit; ansible-playbook lock.yml resolves one"
        )
    return {}


def _leave_out_paths(theirs: Mapping[str, Any], result: Imported) -> None:
    """Leave out each variable of theirs whose value is a path or an address, unless nothing of them is in that folder.
    It may decide which code the engine loads, or whom the engine asks (BASH_ENV, TRITON_PTXAS_PATH, CC, GCONV_PATH …),
    and no list has all of these names."""
    env = result.recipe.get("env", {})
    paths = {name for name, value in env.items() if "/" in value and not OWN_PATH.fullmatch(value)}
    for name in sorted(paths & set(theirs)):
        value = text.one_line(env.pop(name))
        result.left_out.append(f"env.{name}: {value} is a path or an address; add it to env if you know what it is for")


def _questions(recipe: Document) -> Iterator[Question]:
    """Yield what of an imported recipe only its owner can settle."""
    yield from (Question(*question) for question in kept_files.questions(recipe))
    for issue in known_issues.matching_issues(known_issues.of_closed(recipe)):
        if issue.level == "refuse":
            yield Question("image", f"how is the known issue {issue.id} met? {issue.what}: {issue.instead}")


def _flags(document: Document, engine: Engine, result: Imported) -> dict[str, Any]:
    """Return the flags in the engine's spelling. The keys of --speculative-config.KEY are one map."""
    read = dict(sparkrun_flags.flags(document, result.left_out))
    odd = [name for name in read if not rules.FLAG_NAME.fullmatch(name)]
    result.left_out += [f"--{text.one_line(name)}: not the name of a flag" for name in odd]
    flags = flag_names.canonical({name: value for name, value in read.items() if name not in odd}, engine)
    joined = {name: value for name, value in engine_arguments.joined(flags).items() if name in rules.PLANNED_FLAGS}
    return {name: value for name, value in flags.items() if name.partition(".")[0] not in joined} | {
        name: {**flags[name], **value} if isinstance(flags.get(name), dict) else value for name, value in joined.items()
    }


def _refuse_other_servers(flags: Mapping[str, Any]) -> None:
    """Raise RefusedError for a server that answers no chat."""
    asked = {flag: flags[flag] for flag in flag_ranges.TASKS if flag in flags}
    faults = list(flag_ranges.faults(asked))
    if omni := [flag for flag in flags if OMNI.fullmatch(flag)]:
        what, expected = f"--{omni[0]}, which is vllm-omni's: a server of pictures, video or speech", "flags of vLLM"
    elif faults:
        what, expected = faults[0].what.replace("args.", "--"), faults[0].expected
    else:
        return
    raise NOT_SPARKRUN.error(what=what, expected=expected, fix="choose a recipe of a model that generates text.")


def _refuse_too_large(model: str, nodes: int) -> None:
    """Raise RefusedError for a model whose name says that it is larger than the memory of so many Sparks."""
    least, node_memory_gb = least_size.of_name(model), max(reference_spark.SIZES_GB)
    if least > least_size.most(nodes, node_memory_gb):
        words = least_size.words(least, least=True)
        more = ", or a recipe for two Sparks" if nodes == 1 else ""
        raise RefusedError([least_size.too_large(model, words, nodes, node_memory_gb, least_size.FEWER_BITS + more)])


def _leave_out_refused(result: Imported, file: Path) -> None:
    """Leave out each value that `check` refuses. Raises RefusedError, which names the owner's file, for the rest."""
    recipe = result.recipe
    lines, faults = refused_values.leave_out(recipe, file.parent)
    result.left_out += lines
    if faults:
        raise RefusedError(
            BAD_IMPORT(what=f"{file}: {fault.what}", expected=fault.expected, fix=f"correct {file}.")
            for fault in faults
        )
    recipe["gates"] = composing.gates(recipe["args"], recipe["topology"]["nodes"])


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


def _nodes(document: Document, flags: Mapping[str, Any], result: Imported) -> int:
    """Return the number of Sparks. sparkrun replaces the tensor parallelism by the number of its Sparks."""
    asked = flags.get("tensor-parallel-size", (document.get("defaults") or {}).get("tensor_parallel", 1))
    asked = asked if isinstance(asked, int) else 1
    least = document.get("min_nodes") or (2 if document.get("cluster_only") else 1)
    most = 1 if document.get("solo_only") else MOST_NODES
    nodes = min(most, max(asked, int(least), 1))
    if asked > nodes:
        result.left_out.append(f"--tensor-parallel-size {asked}: the recipe is for {nodes}, one rank on each Spark")
    return nodes


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


def _memory(flags: Mapping[str, Any], result: Imported) -> dict[str, Any]:
    """Return the memory block: the bytes of the cache if the recipe names them, else a share of the Spark. Beside bytes
    the share is what the engine wants free at its start, and takes nothing."""
    cache = flags.get("kv-cache-memory-bytes")
    if isinstance(cache, int) and not isinstance(cache, bool) and cache > 0:
        asked = flags.get("gpu-memory-utilization")
        kept = {"utilization": float(asked)} if _is_share(asked) and asked <= MOST_UTILIZATION else {}
        if asked is not None and not kept:
            result.left_out.append(f"gpu_memory_utilization {asked}: not a share up to {MOST_UTILIZATION}")
        return {**kept, "kv_cache_bytes": cache, "free_floor_bytes": DEFAULT_FLOOR_BYTES}
    if cache is not None:
        result.left_out.append(f"--kv-cache-memory-bytes {text.one_line(str(cache))}: not a number of bytes")
    return {"utilization": _utilization(flags, result), "free_floor_bytes": DEFAULT_FLOOR_BYTES}


def _is_share(asked: Any) -> TypeGuard[float]:
    return isinstance(asked, int | float) and not isinstance(asked, bool) and 0 < asked < 1


def _utilization(flags: Mapping[str, Any], result: Imported) -> float:
    asked = flags.get("gpu-memory-utilization")
    if not _is_share(asked):
        return UTILIZATION
    if asked > UTILIZATION:
        result.left_out.append(
            f"gpu_memory_utilization {asked}: the recipe has {UTILIZATION}, above which hosts lost processes"
        )
    return min(float(asked), UTILIZATION)


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
