"""A server as somebody else's file starts it, as a recipe of this toolkit. Pure.

The flags are taken over in the engine's spelling. What has no counterpart here is named and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_spark.authoring import composing, family, image_pins, launch_flags, least_size, pooling, refused_values, task
from vllm_spark.authoring.composing import PAIR, UTILIZATION
from vllm_spark.authoring.launch_file import BAD_IMPORT, Launch, bad
from vllm_spark.authoring.model_facts import Question
from vllm_spark.core import text
from vllm_spark.core.container_layout import CACHE_IN_CONTAINER, SCRATCH_IN_CONTAINER
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document
from vllm_spark.core.units import gib
from vllm_spark.node.engine_api import CHAT, EMBED, RERANK
from vllm_spark.node.supervise.rank import MOST_RANKS
from vllm_spark.recipe import engine_arguments, flag_names, kept_files, known_issues, loader, roles, rules
from vllm_spark.recipe.engine_flags import Engine
from vllm_spark.recipe.lockfile import COMMIT
from vllm_spark.sizing import reference_spark, tensor_parallel
from vllm_spark.sizing.memory import DEFAULT_FLOOR_BYTES, WORKSPACE_BYTES

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Flags that say the same as a decision of this toolkit, so that nothing is lost if they are not taken over.
OWN = {
    *("host", "port", "distributed-executor-backend", "served-model-name", "tensor-parallel-size", "model", "revision"),
    *("gpu-memory-utilization", "speculative-config", "kv-cache-memory-bytes"),
}
# Where a mount replaces files of the engine.
PACKAGES = re.compile(r"/(dist|site)-packages/")
# Flags of vllm-omni, which serves with the same command. Its recipes do not all name --omni.
OMNI = re.compile("omni|cfg-parallel-size|num-gpus|ulysses-degree|use-hsdp|usp|vae-.*")
# A path below the folders in which nothing of a recipe's author is.
OWN_PATH = re.compile(rf"(?:{CACHE_IN_CONTAINER}|{SCRATCH_IN_CONTAINER})(?:/[\w-][\w.-]*)*/?")
# What every launch has (deploy/launch.py), of what others write.
SET = {"HF_HUB_OFFLINE": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "VLLM_NO_USAGE_STATS": "1"}
# What a recipe takes over from one of the catalogue for the same files.
SAME_FILES = ("architecture", "layout", "checkpoint", "size_bytes")
# The two figures of NVIDIA's performance.yaml, and what a recipe calls them.
FIGURES = {"decode": "decode_tokens_per_second_mean", "prefill": "prefill_tokens_per_second_mean"}


@dataclass(slots=True)
class Imported:
    """A recipe, what was left out, each with its reason, and what its owner must answer. `known`: the catalogue's."""

    recipe: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    known: Document = field(default_factory=dict)


def convert(launch: Launch, name: str, base: Document, catalogue: Sequence[Document], file: Path) -> Imported:
    """Return the recipe. `base` has the image and engine of --like, or those to use where the file names none.

    Raises RefusedError for another number of Sparks, a model that is not of the hub or too large, a changed engine,
    a server whose answers no gate can prove, and for anything else that `check` would refuse.
    """
    result = Imported(left_out=list(launch.notes))
    engine = flag_names.engine_of(base["engine"]["version"])
    named, flags = _flags(launch, engine, result)
    model = launch.model or str(flags.get("model") or named)
    role = _role(flags, model)
    _refuse_other_servers(file, flags, role)
    topology = _topology(file, launch, flags, result)
    nodes = topology["nodes"]
    _refuse_model(file, launch, model)
    image, engine_block = image_pins.choose(launch, flags, base, catalogue, result.left_out)
    args, pinned = _args(flags, result), _pinned(launch, str(flags.get("revision") or ""), result)
    known = [one for one in catalogue if one["model"]["repository"] == model]
    result.known = min(known, key=lambda one: ("kept_for" in one, one["topology"]["nodes"] != nodes), default={})
    if not (launch.revision or flags.get("revision")) and "revision" in result.known.get("model", {}):
        pinned = {"revision": result.known["model"]["revision"]}
    result.recipe = {
        "schema_version": 1,
        "name": name,
        "summary": f"{model} as {text.one_line(file.name)} serves it, imported",
        **({"role": role} if role != CHAT else {}),
        "sources": [launch.what],
        "image": image,
        "engine": engine_block,
        "model": {"repository": model, **pinned, "served_name": _served(flags, model)},
        **_drafter(flags.get("speculative-config"), model, pinned, result),
        "env": _env(launch, result),
        "args": args,
        "topology": topology,
        "memory": _memory(flags, result),
        "runtime": {"shm_size": "16g"},
        "gates": _gates(args, nodes, role),
        **({"expected": list(_figures(launch.figures))} if launch.figures else {}),
    }
    _refuse_too_large(file, result.recipe)
    _refuse_changes(file, launch)
    result.recipe = composing.with_additions(result.recipe, family.additions(model))
    _leave_out_refused(result, file)
    _leave_out_paths(launch.env, result)
    result.recipe["args"] = dict(sorted(result.recipe["args"].items()))
    _take_over(result, file)
    result.questions += _questions(result.recipe)
    if role == EMBED:
        result.questions.append(Question("gates.embed.dimensions", "how long is a vector? The model's card says it"))
    return result


def _role(flags: Mapping[str, Any], model: str) -> str:
    """Return the role of a server: the engine makes one of embeddings of a chat model by its flags alone, and which one
    its repository's name says."""
    named = task.of_name(model)
    pools = named in pooling.ROLES or any(flags.get(flag, "auto") not in roles.VALUES[CHAT] for flag in roles.TASKS)
    classes = any(flags.get(flag) in roles.VALUES[RERANK][3:] for flag in roles.TASKS)
    return (RERANK if named == RERANK or classes else EMBED) if pools else CHAT


def _gates(args: Mapping[str, Any], nodes: int, role: str) -> dict[str, Any]:
    """Return the gates of an imported recipe. Its file does not say how long a vector is."""
    if role == CHAT:
        return composing.gates(args, nodes)
    return pooling.gates(role, nodes, {"dimensions": 1} if role == EMBED else {})


def _args(flags: Mapping[str, Any], result: Imported) -> dict[str, Any]:
    """Return the flags that a recipe states itself."""
    args = {flag: value for flag, value in flags.items() if flag not in rules.PLANNED_FLAGS}
    for flag in sorted(set(flags) & set(rules.PLANNED_FLAGS) - OWN):
        result.left_out.append(f"--{flag}: comes from {rules.PLANNED_FLAGS[flag]}")
    if args.pop("trust-remote-code", None):
        result.left_out.append(
            "--trust-remote-code: it runs Python of the checkpoint; add it to args if the model needs it"
        )
    if "download-dir" in args:
        result.left_out.append(f"--download-dir {args.pop('download-dir')}: the launch mounts the model's folder")
    if args.get("max-model-len") == "auto":
        result.questions.append(Question("args.max-model-len", "how long? `auto` takes what the memory leaves"))
    # The topology has the stages.
    args.pop("pipeline-parallel-size", None)
    for flag in ("data-parallel-size", "decode-context-parallel-size"):
        if args.get(flag) == 1:
            args.pop(flag)
    if not set("/{") & set(str(args.get("chat-template", "/"))):
        template = text.one_line(str(args.pop("chat-template")))
        result.left_out.append(f"--chat-template {template}: its file is not in the recipe")
    return args


def _env(launch: Launch, result: Imported) -> dict[str, str]:
    """Return the variables whose values the file has."""
    env = {}
    for name, value in launch.env.items():
        same = "the launch sets it" if SET.get(name) == value else ""
        if reason := same or (launch_flags.unknown(value) if value else "empty"):
            result.left_out.append(f"env.{text.one_line(name)}: {reason}")
        else:
            env[name] = value
    return env


def _pinned(launch: Launch, flag: str, result: Imported) -> dict[str, str]:
    """Return the key `revision` of the model; nothing if the file names no commit."""
    revision = launch.revision or flag
    if COMMIT.fullmatch(revision):
        return {"revision": revision}
    if revision:
        result.left_out.append(
            f"model_revision {text.one_line(revision)}: not a commit; ansible-playbook lock.yml resolves one"
        )
    return {}


def _figures(measured: Document) -> Iterator[dict[str, Any]]:
    """Yield the figures of NVIDIA's performance.yaml as the `expected` of a recipe, which plan and bench read."""
    harness = measured.get("harness") or {}
    source = (
        f"NVIDIA's performance.yaml of {measured.get('measured_at')}, {harness.get('name')} {harness.get('version')}"
    )
    for profile in measured.get("profiles") or ():
        load, results = profile["workload"], profile["results"]
        cell = {"prompt": load["input_tokens"], "output": load["output_tokens"], "streams": load["concurrency"]}
        streams = "one stream" if cell["streams"] == 1 else f"{cell['streams']} streams"
        said = f"{streams}, {cell['prompt']} tokens in, {cell['output']} out ({load.get('dataset')})"
        rows = ((metric, results[key]) for metric, key in FIGURES.items() if results.get(key))
        fixed = {"unit": "tok/s", "load": said, "source": source}
        yield from ({"metric": metric, "value": value, **fixed, "cell": {**cell}} for metric, value in rows)


def _take_over(result: Imported, file: Path) -> None:
    """Take size and architecture of the catalogue's recipe for the same commit, if the flags leave its layout."""
    recipe, known = result.recipe, result.known
    changed = dict(recipe)
    for block, keys in (("model", SAME_FILES), ("drafter", (*SAME_FILES, "revision"))):
        ours, theirs = recipe.get(block, {}), known.get(block, {})
        if (
            ours
            and ours["repository"] == theirs.get("repository")
            and ours.get("revision") in (None, theirs.get("revision"))
        ):
            changed[block] = {**{key: theirs[key] for key in keys if key in theirs}, **ours}
    if not loader.checked(changed, file.parent, recipe["name"])[1]:
        result.recipe = changed


def _leave_out_paths(theirs: Mapping[str, Any], result: Imported) -> None:
    """Leave out each variable of theirs whose value is a path or an address, unless nothing of them is in that folder.
    It may decide which code the engine loads, or whom the engine asks (BASH_ENV, TRITON_PTXAS_PATH, CC, GCONV_PATH …),
    and no list has all of these names."""
    env = result.recipe.get("env", {})
    paths = {name for name, value in env.items() if "/" in value and not OWN_PATH.fullmatch(value)}
    for name in sorted(paths & set(theirs)):
        value = text.one_line(env.pop(name))
        result.left_out.append(f"env.{name}: {value} is a path or an address; add it to env if you know what it is for")
    if not env:
        result.recipe.pop("env", None)


def _questions(recipe: Document) -> Iterator[Question]:
    """Yield what of an imported recipe only its owner can settle."""
    yield from (Question(*question) for question in kept_files.questions(recipe))
    for issue in known_issues.matching_issues(known_issues.of_closed(recipe)):
        if issue.level == "refuse":
            yield Question("image", f"how is the known issue {issue.id} met? {issue.what}: {issue.instead}")


def _flags(launch: Launch, engine: Engine, result: Imported) -> tuple[str, dict[str, Any]]:
    """Return the model of the command line, and the flags in the engine's spelling. The keys of
    --speculative-config.KEY are one map."""
    model, read = launch_flags.parted(launch.words, engine, result.left_out)
    odd = [name for name in read if not rules.FLAG_NAME.fullmatch(name)]
    result.left_out += [f"--{text.one_line(name)}: not the name of a flag" for name in odd]
    flags = flag_names.canonical({name: value for name, value in read.items() if name not in odd}, engine)
    joined = {name: value for name, value in engine_arguments.joined(flags).items() if name in rules.PLANNED_FLAGS}
    return model, {name: value for name, value in flags.items() if name.partition(".")[0] not in joined} | {
        name: {**flags[name], **value} if isinstance(flags.get(name), dict) else value for name, value in joined.items()
    }


def _refuse_model(file: Path, launch: Launch, model: str) -> None:
    """Raise RefusedError for a model that is no repository of the hub."""
    reason = launch_flags.unknown(model)
    if reason or not REPOSITORY.fullmatch(model):
        folder = ": a folder of its owner" * ("/" in model)
        what = f"service {launch.name}: " * bool(launch.name) + (
            f"model {reason or model + folder}" if model else "no model in it"
        )
        fix = f"write OWNER/NAME for it in {file}, or name it with --as OWNER/NAME."
        raise bad(file, what, "a repository of the hub, OWNER/NAME", fix)


def _refuse_changes(file: Path, launch: Launch) -> None:
    """Raise RefusedError for what changes the engine's files: nothing of a stranger runs unread."""
    if changes := [*launch.mods, *(f"mount {one}" for one in launch.mounts if PACKAGES.search(one))]:
        what = f"{', '.join(changes)}: it changes files of the engine when the container starts"
        fix = f"read it. What the server needs of it becomes `patches` of a recipe; then delete its line in {file}."
        raise bad(file, what, "an engine as its image has it", fix)


def _refuse_other_servers(file: Path, flags: Mapping[str, Any], role: str) -> None:
    """Raise RefusedError for a server of no role, and for flags of two."""
    taken = roles.VALUES[role]
    faults = [roles.task_fault(flag, flags[flag], role) for flag in roles.TASKS if flags.get(flag, "auto") not in taken]
    omni = [
        f"--{flag}, which is vllm-omni's: a server of pictures, video or speech"
        for flag in flags
        if OMNI.fullmatch(flag)
    ]
    if omni or faults:
        what, expected = (
            (omni[0], "flags of vLLM") if omni else (faults[0].what.replace("args.", "--"), faults[0].expected)
        )
        raise bad(file, what, expected, "choose a recipe of one of the roles: chat, embed or rerank.")


def _refuse_too_large(file: Path, recipe: Document) -> None:
    """Raise RefusedError for weights that the memory block cannot hold, by the size in the model's name."""
    model, nodes, budget = recipe["model"]["repository"], recipe["topology"]["nodes"], recipe["memory"]
    total = reference_spark.memory(max(reference_spark.SIZES_GB))["total"]
    # A cache of fixed size comes on top of the weights; with a share it is what they leave.
    share, cache = (UTILIZATION, budget["kv_cache_bytes"]) if "kv_cache_bytes" in budget else (budget["utilization"], 0)
    weights = least_size.of_name(model) / nodes
    needed = weights + WORKSPACE_BYTES + cache
    if weights and needed > share * total:
        parts = (
            f"{gib(weights)} of weights at least, {gib(WORKSPACE_BYTES)} of workspace"
            + f", {gib(cache)} of cache" * bool(cache)
        )
        more = ", or a recipe for more Sparks" if nodes < MOST_RANKS else ""
        raise least_size.DOES_NOT_FIT.error(
            what=f"{file}: {model} needs {gib(needed)} on each Spark ({parts}), and {share} are {gib(share * total)}",
            expected=f"at most {UTILIZATION} of the Spark's {gib(total)}; this server needs {needed / total:.2f}",
            fix=f"{least_size.FEWER_BITS}{more}.",
        )


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
    recipe["gates"] = _gates(recipe["args"], recipe["topology"]["nodes"], roles.of(recipe))


def _topology(file: Path, launch: Launch, flags: Mapping[str, Any], result: Imported) -> dict[str, Any]:
    """Return the block `topology`. Each rank of tensor and pipeline parallelism has a Spark of its own."""
    tensor, pipeline = (_count(flags.get(f"{name}-parallel-size")) for name in ("tensor", "pipeline"))
    nodes = max(tensor * pipeline, launch.nodes, _count(flags.get("nnodes")))
    sizes = f"--tensor-parallel-size {tensor}" + f" times --pipeline-parallel-size {pipeline}" * (pipeline > 1)
    if launch.most == 1 and tensor * pipeline <= PAIR:
        result.left_out += [f"{sizes}: the recipe is for 1, one rank on each Spark"] * (tensor * pipeline > 1)
        return tensor_parallel.topology(1, 1)
    if nodes > MOST_RANKS:
        asked = sizes if tensor * pipeline == nodes else "min_nodes, node_count or --nnodes"
        most = f"at most {MOST_RANKS} Sparks"
        raise bad(file, f"{asked}: it is for {nodes} Sparks, one rank on each", most, f"choose a recipe for {most}.")
    if tensor * pipeline not in (1, nodes):
        what = f"{sizes}: {tensor * pipeline} ranks, and the file is for {nodes} Sparks"
        fix = f"write --tensor-parallel-size {nodes} in {file}, if so many ranks can share each layer."
        raise bad(file, what, "one rank on each Spark", fix)
    if nodes > PAIR and pipeline > 1:
        return tensor_parallel.topology(nodes, tensor)
    if pipeline > 1:
        what = f"--pipeline-parallel-size {pipeline}: the Sparks would compute the layers one after the other"
        fix = f"write --tensor-parallel-size {nodes} in its place in {file}, if a half of each layer is possible."
        raise bad(file, what, "tensor parallelism, which is how a deployment splits a model over two Sparks", fix)
    return tensor_parallel.topology(nodes, nodes)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


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
    asked, cache = flags.get("gpu-memory-utilization", 0), flags.get("kv-cache-memory-bytes")
    named = isinstance(asked, float) and 0 < asked < 1
    sized = isinstance(cache, int) and not isinstance(cache, bool) and cache > 0
    share = min(asked, UTILIZATION) if named else UTILIZATION
    if named and share < asked:
        why = f"the recipe has {UTILIZATION}, above which hosts lost processes"
        result.left_out.append(f"gpu_memory_utilization {asked}: {why}")
    if cache is not None and not sized:
        result.left_out.append(f"--kv-cache-memory-bytes {text.one_line(str(cache))}: not a number of bytes")
    kept = {"utilization": share} if named or not sized else {}
    return {**kept, **({"kv_cache_bytes": cache} if sized else {}), "free_floor_bytes": DEFAULT_FLOOR_BYTES}
