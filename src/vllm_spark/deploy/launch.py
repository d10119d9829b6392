"""The launch of one rank: argv, env and mounts, and the script that a person can read and run.

Order is sorted and stable, so that the same inputs give the same bytes: the engine's compile cache is
keyed on its flags (vLLM compilation/backends.py), and `deploy` compares files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.core import paths, ports
from vllm_spark.core.templates import templates
from vllm_spark.core.types import Document
from vllm_spark.inventory.spec import Spec, mount_source
from vllm_spark.network import pair
from vllm_spark.recipe.flag_argv import OptionArgv, flag_argv
from vllm_spark.recipe.hub_cache import CACHE_IN_CONTAINER, HUB_IN_CONTAINER, hub_folder, snapshot

# vLLM gives up on its own engine after this long by default (envs.py, VLLM_ENGINE_READY_TIMEOUT_S).
ENGINE_READY_TIMEOUT_S = 600


# torch's allocator then grows its segments instead of reserving new ones, so that less memory is lost between them. On
# a Spark that memory is the host's (kelnei's docker-compose.spark.yml). torch without CUDA does not read it.
EXPANDABLE_SEGMENTS = "expandable_segments:True"


# Half of a 0.20 engine's exits take longer than Docker's ten seconds: it joins its workers first.
STOP_TIMEOUT_S = 30

DEFAULT_RUNTIME: Mapping[str, Any] = {
    # A Spark's memory is one pool, so shared memory is taken from the model's.
    "shm_size": "8g",
    "ulimits": {"memlock": -1, "stack": 67108864},
    "devices": [],
    "capabilities": [],
}

# RDMA: without the devices NCCL takes TCP and says nothing; without IPC_LOCK it cannot register memory.
PAIR_RUNTIME: Mapping[str, Any] = {"devices": ["/dev/infiniband"], "capabilities": ["IPC_LOCK"]}


def environment(spec: Spec) -> dict[str, str]:
    """The container's env but for secrets: the plan's own, then the recipe's (which wins)."""
    env = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "FLASHINFER_WORKSPACE_BASE": CACHE_IN_CONTAINER,
        "TRITON_CACHE_DIR": f"{CACHE_IN_CONTAINER}/triton",
        "VLLM_CACHE_ROOT": f"{CACHE_IN_CONTAINER}/vllm",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if _may_expand_segments(spec.recipe):
        env["PYTORCH_CUDA_ALLOC_CONF"] = EXPANDABLE_SEGMENTS
    deadline_s = spec.recipe["gates"]["ready"]["deadline_s"]
    if deadline_s > ENGINE_READY_TIMEOUT_S:
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = str(deadline_s)
    if spec.pair:
        env |= pair.environment(spec.pair)
    return {**env, **spec.recipe.get("env", {})}


def _may_expand_segments(recipe: Document) -> bool:
    """Return False if the recipe configures torch's allocator by its newer name, which torch reads first, or uses sleep
    mode: its allocator refuses expandable segments (vLLM device_allocator/cumem.py)."""
    return "PYTORCH_ALLOC_CONF" not in recipe.get("env", {}) and not recipe["args"].get("enable-sleep-mode")


def served_names(recipe: Document) -> str | list[str]:
    """Return the name that clients ask for, or a list with its aliases behind it."""
    model = recipe["model"]
    return [model["served_name"], *model["aliases"]] if model.get("aliases") else str(model["served_name"])


def flags(spec: Spec) -> dict[str, Any]:
    """The flags of `vllm serve`: the recipe's args and those that the plan sets."""
    recipe, placed = spec.recipe, spec.deployment
    planned: dict[str, Any] = {
        "served-model-name": served_names(recipe),
        "host": placed.bind,
        "port": placed.port,
        "tensor-parallel-size": recipe["topology"]["tensor_parallel"],
        "gpu-memory-utilization": recipe["memory"].get("utilization"),
        "kv-cache-memory-bytes": recipe["memory"].get("kv_cache_bytes"),
    }
    if "drafter" in recipe:
        drafter = recipe["drafter"]
        planned["speculative-config"] = {
            "model": snapshot(HUB_IN_CONTAINER, drafter),
            "num_speculative_tokens": drafter["speculative_tokens"],
            **drafter.get("config", {}),
        }
    if spec.pair:
        planned |= pair.flags(spec.pair)
    return {**recipe["args"], **{flag: value for flag, value in planned.items() if value is not None}}


def engine_command(spec: Spec) -> Iterator[OptionArgv]:
    """Yield `serve MODEL` and the flags of the engine."""
    yield ("serve", snapshot(HUB_IN_CONTAINER, spec.recipe["model"]))
    for flag, value in sorted(flags(spec).items()):
        yield flag_argv(flag, value)


def container_command(spec: Spec) -> Iterator[OptionArgv]:
    """Yield the arguments of `docker run` after the image.

    Without Ray: the engine. On the head of a Ray pair: Ray and the engine in one container, so that they end together.
    On its worker: Ray alone, which starts the second rank of the engine."""
    if not spec.pair or spec.pair.executor != "ray":
        yield from engine_command(spec)
    elif spec.rank:
        yield from ((argument,) for argument in pair.ray_argv(spec.pair))
    else:
        yield ("-c", f'ray {" ".join(pair.ray_argv(spec.pair))} && exec vllm "$@"')
        # The name of the shell that -c runs, then its arguments.
        yield ("vllm",)
        yield from engine_command(spec)


def entrypoint(spec: Spec) -> str:
    """Return the program of the container."""
    if not spec.pair or spec.pair.executor != "ray":
        return "vllm"
    return "ray" if spec.rank else "sh"


def mounts(spec: Spec) -> Iterator[tuple[str, str, bool]]:
    """Return (source on the host, target in the container, read-only), sorted by target."""
    entries = [(f"{spec.site.cache_dir}/{spec.deployment.name}", CACHE_IN_CONTAINER, False)]
    for source in (spec.recipe["model"], spec.recipe.get("drafter")):
        if source:
            folder = hub_folder(source["repository"])
            entries.append((f"{spec.site.hub_dir}/{folder}", f"{HUB_IN_CONTAINER}/{folder}", True))
    for mount in spec.recipe.get("mounts", []):
        entries.append((mount_source(spec, mount), mount["target"], True))
    return iter(sorted(entries, key=lambda entry: entry[1]))


def container_options(spec: Spec) -> Iterator[OptionArgv]:
    """Yield the options of `docker run` except the labels."""
    runtime = {**DEFAULT_RUNTIME, **(PAIR_RUNTIME if spec.pair else {}), **spec.recipe.get("runtime", {})}
    for capability in sorted(runtime["capabilities"]):
        yield ("--cap-add", capability)
    for device in sorted(runtime["devices"]):
        yield ("--device", device)
    yield ("--entrypoint", entrypoint(spec))
    for name, value in sorted(environment(spec).items()):
        yield ("--env", f"{name}={value}")
    yield ("--env-file", f"{spec.config_dir}/env")
    if spec.pair and spec.pair.executor == "ray":
        yield ("--env-file", pair.session_env(spec.deployment.name))
    yield ("--gpus", "all")
    yield ("--init",)
    # The journal has the engine's output through the unit; a second copy would fill the disk.
    yield ("--log-driver", "none")
    for source, target, read_only in mounts(spec):
        yield ("--mount", f"type=bind,source={source},target={target}" + (",readonly" if read_only else ""))
    yield ("--name", spec.deployment.container)
    yield ("--network", "host")
    # A restart must neither need the network nor change the image.
    yield ("--pull", "never")
    yield ("--rm",)
    yield ("--security-opt", "no-new-privileges")
    yield ("--shm-size", runtime["shm_size"])
    yield ("--stop-timeout", str(STOP_TIMEOUT_S))
    for name, limit in sorted(runtime["ulimits"].items()):
        yield ("--ulimit", f"{name}={limit}")


def lines_hash(spec: Spec) -> str:
    """Return the hash of the lines that the shell runs in the launch of one rank. Comments do not count."""
    lines = [line for line in _rendered(spec, "").splitlines() if line and not line.startswith("#")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def fingerprint(spec: Spec) -> str:
    """Return the hash that identifies a launch. All ranks of a pair have the same one."""
    return spec.pair.launch if spec.pair else lines_hash(spec)


def supervisor(spec: Spec) -> Iterator[OptionArgv]:
    """Return the arguments of the supervisor of a pair; empty for a deployment of one Spark."""
    if spec.pair:
        placed = spec.deployment
        yield from pair.supervisor_argv(spec.pair, placed.name, spec.image, f"{placed.local_address}:{placed.port}")


def command(spec: Spec, launch: str) -> list[OptionArgv]:
    """Return the whole launch as groups of arguments: an option with its values is one group. `launch` is its
    fingerprint."""
    labels = {
        "vllm-spark.deployment": spec.deployment.name,
        "vllm-spark.launch": launch,
        "vllm-spark.rank": str(spec.rank),
    }
    return [
        *supervisor(spec),
        ("docker", "run"),
        *container_options(spec),
        *(("--label", f"{name}={value}") for name, value in labels.items()),
        (spec.image,),
        *container_command(spec),
    ]


def argv(spec: Spec) -> list[str]:
    """Return the argv of the launch."""
    return [argument for group in command(spec, fingerprint(spec)) for argument in group]


def script(spec: Spec) -> str:
    """Return the launch script of a host."""
    return _rendered(spec, fingerprint(spec))


def _rendered(spec: Spec, launch: str) -> str:
    template = templates().get_template("launch.sh.j2")
    return template.render(spec=spec, command=command(spec, launch), fingerprint=launch, closed=ports.CLOSED_PORTS)


def env_file(secrets: Mapping[str, str]) -> str:
    """The env file: secrets and nothing else. Raises ValueError for a value that is not one line."""
    for name, value in secrets.items():
        if "\n" in value:
            raise ValueError(f"vllm_secrets.{name} has a line break; an env file holds one line per variable")
    return templates().get_template("env.j2").render(secrets=dict(sorted(secrets.items())))


def unit_file() -> str:
    """The unit, the same text for every deployment."""
    return (paths.TEMPLATES / "vllm@.service").read_text(encoding="utf-8")
