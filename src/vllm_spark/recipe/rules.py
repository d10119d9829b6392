"""Rules between the fields of a recipe, which a JSON schema cannot express."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from vllm_spark.core.container_layout import OWN_FOLDERS
from vllm_spark.core.fault import Fault
from vllm_spark.core.types import Document
from vllm_spark.node.secret_names import has_form, is_secret
from vllm_spark.recipe import (
    engine_flags,
    flag_names,
    flag_ranges,
    flag_types,
    held_weights,
    roles,
    variable_owners,
)

# Flags that the plan sets from the deployment, the topology and the memory block. In `args` they would be a second
# source that may contradict the first. Flag -> its source.
PLANNED_FLAGS = {
    "model": "model.repository",
    "revision": "model.revision",
    "served-model-name": "model.served_name",
    "speculative-config": "drafter",
    "host": "the deployment's bind",
    "port": "the deployment's port",
    "uds": "vllm_edge",
    "api-key": "vllm_secrets.VLLM_API_KEY",
    "tensor-parallel-size": "topology.tensor_parallel",
    "distributed-executor-backend": "topology.executor",
    "nnodes": "topology.nodes",
    "node-rank": "the order of the deployment's hosts",
    "master-addr": "the fabric address of the first host",
    "master-port": "the deployment",
    "headless": "the order of the deployment's hosts",
    "gpu-memory-utilization": "memory.utilization",
    "kv-cache-memory-bytes": "memory.kv_cache_bytes",
    "config": "args themselves, because the checks read no file of the container",
}

# The name of a flag in args, with the keys of --FLAG.KEY. recipes/schema.json has the same pattern.
FLAG_NAME = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_+-]+)*")

# Ray serves the pair of the field reports; more ranks use mp.
RAY_NODES = 2

RAY_PIN = re.compile(r"ray(\[[a-z,]+\])?==")


def recipe_faults(document: Document, stem: str) -> Iterator[Fault]:
    """Yield the faults of a recipe that passed its schema. `stem` is the stem of its file."""
    if document["name"] != stem:
        yield Fault(f"name: {document['name']}", f"{stem}, the file's stem")
    yield from override_faults(document)
    yield from _topology_faults(document)
    yield from _mount_faults(document)
    yield from _ray_faults(document)
    yield from log_gates_faults(document)
    yield from _evidence_faults(document)


def value_faults(document: Document) -> Iterator[Fault]:
    """Yield the faults of memory and flags, of a recipe or of a recipe with a deployment's overrides. The flags have
    the spelling of the engine."""
    if not {"utilization", "kv_cache_bytes"} & set(document["memory"]):
        yield Fault("memory: neither utilization nor kv_cache_bytes", "one of them")
    engine = flag_names.engine_of(document["engine"]["version"])
    document = {**document, "args": flag_names.canonical(document["args"], engine)}
    yield from flag_ranges.faults(document["args"])
    yield from held_weights.faults(document)
    yield from roles.faults(document)


def override_faults(document: Document) -> Iterator[Fault]:
    """Yield the faults of `args` and `env`: of a recipe, or of a deployment's overrides. The names of flags may be
    spelled in any way that vLLM takes."""
    args = document.get("args", {})
    # A recipe names its engine. The overrides do not, and the newest engine decides what an abbreviation means.
    version = document.get("engine", {}).get("version", engine_flags.versions()[-1])
    engine = flag_names.engine_of(version)
    yield from flag_names.repeated(args, engine)
    for name in sorted(args):
        if not FLAG_NAME.fullmatch(name):
            yield Fault(
                f"args.{name.partition('=')[0]}: not the name of a flag",
                "letters, digits, dashes and underscores; the value apart",
            )
        if hidden := [word for word in _words(args[name]) if word.startswith("--")]:
            yield Fault(
                f"args.{name}: {hidden[0].partition('=')[0]}", "a value, because each flag is a line of its own"
            )
        flag = flag_names.canonical_item(name, None, engine)[0].partition(".")[0]
        spelling = "set" if flag == name else f"set, which is --{flag}"
        if flag in PLANNED_FLAGS:
            yield Fault(f"args.{name}: {spelling}", f"to come from {PLANNED_FLAGS[flag]}")
        elif isinstance(args[name], str) and is_secret(flag, args[name]):
            yield Fault(f"args.{name}: a secret", f"{flag.replace('-', '_').upper()} in vllm_secrets of the inventory")
        else:
            for place in _secrets(f"args.{name}", args[name], name.partition(".")[2]):
                yield Fault(f"{place}: a secret", "no such value; the engine's variable for it in vllm_secrets")
    env = document.get("env", {})
    yield from variable_owners.faults(env)
    for variable in sorted(env):
        if "\n" in (env[variable] or ""):
            yield Fault(f"env.{variable}: a line break", "one line, because an env file has one line per variable")


def _secrets(path: str, value: object, key: str) -> Iterator[str]:
    """Yield the paths of secrets in the value of a flag: below keys of its map, and texts in the form of a secret.
    `key` is the key of the value in that map; empty for the flag's own value."""
    value = flag_types.parsed(value)
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from _secrets(f"{path}.{name}", inside, str(name))
    elif isinstance(value, list):
        for inside in value:
            yield from _secrets(path, inside, key)
    elif isinstance(value, str) and (is_secret(key, field=True) or has_form(value)):
        yield path


def _words(value: object) -> list[str]:
    """Return the words of a flag's value that the engine could take for flags."""
    return [str(word) for word in (value if isinstance(value, list | tuple) else [value])]


def _topology_faults(document: Document) -> Iterator[Fault]:
    topology = document["topology"]
    nodes, tensor, stages = topology["nodes"], topology["tensor_parallel"], stages_of(document)
    if tensor * stages != nodes:
        split = f" and pipeline_parallel: {stages}" if stages > 1 else ""
        yield Fault(
            f"topology.tensor_parallel: {tensor}{split}",
            f"{nodes // stages}, because a Spark has one GPU"
            if nodes % stages == 0
            else f"a product of {nodes}, because a Spark has one GPU",
        )
    if nodes == 1 and topology["executor"] == "ray":
        yield Fault("topology.executor: ray", "uni or mp, because one Spark needs no Ray")
    if nodes > RAY_NODES and topology["executor"] == "ray":
        yield Fault("topology.executor: ray", f"mp, because Ray serves two Sparks and the recipe is for {nodes}")
    if nodes > 1 and topology["executor"] == "uni":
        yield Fault("topology.executor: uni", "mp or ray for two Sparks, mp for more")


def stages_of(document: Document) -> int:
    """Return the stages of layers that a recipe divides its ranks into; 1 without pipeline parallelism."""
    return int(document["topology"].get("pipeline_parallel", 1))


def _mount_faults(document: Document) -> Iterator[Fault]:
    """Yield the faults of targets: Docker takes each one once, and the folders of the toolkit are taken."""
    targets = [posixpath.normpath(mount["target"]) for mount in document.get("mounts", [])]
    for number, target in enumerate(targets):
        place = f"mounts[{number}].target: {target}"
        if target in targets[:number]:
            yield Fault(place, "a target that no other mount has")
        if any(PurePosixPath(target).is_relative_to(folder) for folder in OWN_FOLDERS):
            yield Fault(place, f"one outside of {', '.join(OWN_FOLDERS)}, which are the toolkit's")


def _ray_faults(document: Document) -> Iterator[Fault]:
    pins = document["image"].get("derive", {}).get("pip", [])
    installed = [pin.partition("==")[2] for pin in pins if RAY_PIN.match(pin)]
    declared = document["engine"].get("ray", "missing")
    if installed and installed != [declared]:
        yield Fault(f"engine.ray: {declared}", f"{installed[0]}, which image.derive.pip installs")


def log_gates_faults(document: Document) -> Iterator[Fault]:
    """Yield the faults of the log gates of a recipe, or of a recipe with a deployment's overrides."""
    ids: set[str] = set()
    for index, gate in enumerate(document["gates"].get("log", [])):
        place = f"gates.log[{index}]"
        if gate["id"] in ids:
            yield Fault(f"{place}.id: {gate['id']} twice", "every gate's id once")
        ids.add(gate["id"])
        yield from _log_gate_faults(place, gate)


def _log_gate_faults(place: str, gate: Document) -> Iterator[Fault]:
    try:
        pattern = re.compile(gate["pattern"])
    except re.error as error:
        yield Fault(f"{place}.pattern: {gate['pattern']}", f"a regular expression ({error})")
        return
    comparison = next((name for name in ("at_least", "equals") if name in gate), "")
    if comparison and "value" not in pattern.groupindex:
        yield Fault(f"{place}.pattern: no group named value", f"(?P<value>…), which {comparison} compares")
    if comparison and gate.get("expect") == "absent":
        yield Fault(f"{place}: expect absent with {comparison}", "only one of the two")


def _evidence_faults(document: Document) -> Iterator[Fault]:
    """Yield the faults of entries of `evidence`. Files of the bench have date and hosts themselves."""
    for number, entry in enumerate(document.get("evidence", [])):
        place = f"evidence[{number}]"
        if "bench" in entry:
            for name in sorted({"date", "hosts", "commit"} & set(entry)):
                yield Fault(f"{place}.{name}: set beside bench", "to come from the files of `bench`")
            continue
        missing = [name for name in ("date", "hosts", "report") if name not in entry]
        if missing:
            expected = "date, hosts and report, or files of the bench"
            yield Fault(f"{place}: neither {' and '.join(missing)} nor bench", expected)
        if "differs" in entry:
            yield Fault(
                f"{place}.differs: without bench", "`bench` beside it, because `hosts` describes other evidence"
            )
