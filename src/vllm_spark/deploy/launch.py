"""The launch of one rank: argv, env and mounts, and the script that a person can read and run.

Order is sorted and stable, so that the same inputs give the same bytes: the engine's compile cache is
keyed on its flags (vLLM compilation/backends.py), and `deploy` compares files.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_spark.core import engine_version, ports
from vllm_spark.core.container_layout import CACHE_IN_CONTAINER, HUB_IN_CONTAINER
from vllm_spark.core.templates import templates, unchanged
from vllm_spark.core.types import Document
from vllm_spark.deploy import closed_engine
from vllm_spark.inventory import rank_group
from vllm_spark.inventory.spec import Spec, mount_source
from vllm_spark.node import host_layout, launch_difference
from vllm_spark.node.unit_limits import STOP_TIMEOUT_S
from vllm_spark.node.unix_http import SCHEME
from vllm_spark.recipe import conditions, host_memory, roles
from vllm_spark.recipe.flag_argv import OptionArgv, flag_argv
from vllm_spark.recipe.hub_cache import hub_folder, snapshot
from vllm_spark.sizing import memory

# vLLM gives up on its own engine after this long by default (envs.py, VLLM_ENGINE_READY_TIMEOUT_S).
ENGINE_READY_TIMEOUT_S = 600


# torch's allocator then grows its segments instead of reserving new ones, so that less memory is lost between them. On
# a Spark that memory is the host's (kelnei's docker-compose.spark.yml): without it an owner's prompt of 337,000 tokens
# beside a KV connector took the whole host (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#57). torch without CUDA does not
# read it.
EXPANDABLE_SEGMENTS = "expandable_segments:True"

# Beside a KV connector the engine takes these segments only with this flag: its allocator then holds weights and cache
# outside of them, where they never move (config/vllm.py, _verify_kv_transfer_compat; device_allocator/cumem.py).
CUMEM_ALLOCATOR, CUMEM_SINCE = "enable-cumem-allocator", "0.22.0"


# The versions whose ranks tune FlashInfer's kernels in step and share the first rank's saved result. A rank that finds
# its experts in it skips steps in which the other one waits for it: a pair with experts hangs at its second start
# (vllm#57423; vllm/model_executor/warmup/kernel_warmup.py). So the folder of the result ends with the container.
SHARED_TUNING_SINCE, SHARED_TUNING_BELOW = (0, 27), (0, 32)
TUNING_FOLDER = "VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR"
TUNING_IN_CONTAINER = "/tmp/flashinfer-autotune"  # noqa: S108  in the container


DEFAULT_RUNTIME: Mapping[str, Any] = {
    "shm_size": host_memory.DEFAULT_SHM_SIZE,
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
    if spec.group:
        env |= rank_group.environment(spec.group)
        if SHARED_TUNING_SINCE <= engine_version.release(spec.recipe["engine"]["version"]) < SHARED_TUNING_BELOW:
            env[TUNING_FOLDER] = TUNING_IN_CONTAINER
    if closed_engine.is_closed(spec):
        env |= closed_engine.environment(spec)
    return {**env, **spec.recipe.get("env", {})}


def _may_expand_segments(recipe: Document) -> bool:
    """Return False if the recipe configures torch's allocator by its newer name, which torch reads first, or uses sleep
    mode: its allocator refuses expandable segments (vLLM device_allocator/cumem.py). Nor if the cache of a KV connector
    would move."""
    flags = {**_beside_connector(recipe), **recipe["args"]}
    moves = conditions.has_kv_connector(recipe) and not flags.get(CUMEM_ALLOCATOR)
    return not ("PYTORCH_ALLOC_CONF" in recipe.get("env", {}) or flags.get("enable-sleep-mode") or moves)


def _beside_connector(recipe: Document) -> dict[str, Any]:
    """Return the flags that a KV connector needs."""
    since = conditions.version_matches({"since": CUMEM_SINCE}, recipe["engine"]["version"])
    return {CUMEM_ALLOCATOR: True} if since and conditions.has_kv_connector(recipe) else {}


def served_names(recipe: Document) -> str | list[str]:
    """Return the name that clients ask for, or a list with its aliases behind it."""
    model = recipe["model"]
    return [model["served_name"], *model["aliases"]] if model.get("aliases") else str(model["served_name"])


def flags(spec: Spec) -> dict[str, Any]:
    """The flags of `vllm serve`: the recipe's args and those that the plan sets."""
    recipe, placed, closed = spec.recipe, spec.deployment, closed_engine.is_closed(spec)
    address = closed_engine.address(spec) if closed else {"host": placed.bind, "port": placed.port}
    planned: dict[str, Any] = {
        "served-model-name": served_names(recipe),
        **address,
        "tensor-parallel-size": recipe["topology"]["tensor_parallel"],
        "pipeline-parallel-size": recipe["topology"].get("pipeline_parallel"),
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
    if spec.group:
        planned |= rank_group.flags(spec.group)
    defaults = roles.flags(recipe) | _beside_connector(recipe) | (closed_engine.flags(spec) if closed else {})
    return {**defaults, **recipe["args"], **{flag: value for flag, value in planned.items() if value is not None}}


def engine_command(spec: Spec) -> Iterator[OptionArgv]:
    """Yield `serve MODEL` and the flags of the engine."""
    yield ("serve", snapshot(HUB_IN_CONTAINER, spec.recipe["model"]))
    for flag, value in sorted(flags(spec).items()):
        yield flag_argv(flag, value)


def container_command(spec: Spec) -> Iterator[OptionArgv]:
    """Yield the arguments of `docker run` after the image.

    Without Ray: the engine. On the head of a Ray pair: Ray and the engine in one container, so that they end together.
    On its worker: Ray alone, which starts the second rank of the engine. A shell sets the umask of a closed engine."""
    match entrypoint(spec):
        case "vllm":
            yield from engine_command(spec)
        case "ray":
            yield from ((argument,) for argument in rank_group.ray_argv(_grouped(spec)))
        case _:
            yield ("-c", " && ".join(_shell_steps(spec)))
            # The name of the shell that -c runs, then its arguments.
            yield ("vllm",)
            yield from engine_command(spec)


def _shell_steps(spec: Spec) -> Iterator[str]:
    if closed_engine.serves(spec):
        yield f"umask {closed_engine.UMASK}"
    if _with_ray(spec):
        yield f"ray {' '.join(rank_group.ray_argv(_grouped(spec)))}"
    yield 'exec vllm "$@"'


def entrypoint(spec: Spec) -> str:
    """Return the program of the container."""
    if _with_ray(spec) and spec.rank:
        return "ray"
    return "sh" if _with_ray(spec) or closed_engine.serves(spec) else "vllm"


def _with_ray(spec: Spec) -> bool:
    return spec.group is not None and spec.group.executor == "ray"


def _grouped(spec: Spec) -> rank_group.RankGroup:
    """Return the group of a spec that has one."""
    assert spec.group  # noqa: S101  for the type checker
    return spec.group


def cache_folder(spec: Spec) -> str:
    """Return the folder of the engine's compile cache on the host."""
    return f"{spec.site.cache_dir}/{spec.deployment.name}"


def mounts(spec: Spec) -> list[tuple[str, str, bool]]:
    """Return (source on the host, target in the container, read-only), sorted by target. Each target is there once: a
    drafter may lie in the model's own repository, and recipe/rules.py keeps the mounts of a recipe apart."""
    entries = {(cache_folder(spec), CACHE_IN_CONTAINER, False), *closed_engine.mounts(spec)}
    for source in (spec.recipe["model"], spec.recipe.get("drafter")):
        if source:
            folder = hub_folder(source["repository"])
            entries.add((f"{spec.site.hub_dir}/{folder}", f"{HUB_IN_CONTAINER}/{folder}", True))
    for mount in spec.recipe.get("mounts", []):
        entries.add((mount_source(spec, mount), mount["target"], True))
    return sorted(entries, key=lambda entry: entry[1])


def container_options(spec: Spec) -> Iterator[OptionArgv]:
    """Yield the options of `docker run` except the labels, sorted by their names."""
    closed = closed_engine.options() if closed_engine.is_closed(spec) else ()
    yield from sorted((*_options(spec), *closed), key=lambda option: option[0])


def _options(spec: Spec) -> Iterator[OptionArgv]:
    runtime = {**DEFAULT_RUNTIME, **(PAIR_RUNTIME if spec.group else {}), **spec.recipe.get("runtime", {})}
    for capability in sorted(runtime["capabilities"]):
        yield ("--cap-add", capability)
    for device in sorted(runtime["devices"]):
        yield ("--device", device)
    yield ("--entrypoint", entrypoint(spec))
    for name, value in sorted(environment(spec).items()):
        yield ("--env", f"{name}={value}")
    yield ("--env-file", f"{spec.config_dir}/env")
    if _with_ray(spec):
        yield ("--env-file", rank_group.session_env(spec.deployment.name))
    # By CDI the devices are part of the container. Those of --gpus are added later, and the next daemon-reload of
    # systemd, which does not know them, takes them away.
    yield ("--device", "nvidia.com/gpu=all") if spec.gpu_by_cdi else ("--gpus", "all")
    yield ("--init",)
    # The journal has the engine's output through the unit; a second copy would fill the disk.
    yield ("--log-driver", "none")
    for source, target, read_only in mounts(spec):
        yield ("--mount", f"type=bind,source={source},target={target}" + (",readonly" if read_only else ""))
    yield ("--name", spec.deployment.container)
    yield ("--network", closed_engine.network(spec))
    # A restart must neither need the network nor change the image.
    yield ("--pull", "never")
    yield ("--rm",)
    yield ("--security-opt", "no-new-privileges")
    if "seccomp" in runtime:
        yield ("--security-opt", f"seccomp={runtime['seccomp']}")
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
    return spec.group.launch if spec.group else spec.launch or lines_hash(spec)


def standing(spec: Spec) -> str:
    """Return what the server of this launch is, as launch_difference.standing does. The fingerprint does not count."""
    return launch_difference.standing(_rendered(spec, ""))


def supervisor(spec: Spec) -> Iterator[OptionArgv]:
    """Return the arguments of the supervisor of a pair; empty for a deployment of one Spark."""
    if spec.group:
        placed = spec.deployment
        api = f"{SCHEME}{spec.socket}" if spec.socket else f"{placed.local_address}:{placed.port}"
        yield from rank_group.supervisor_argv(spec.group, placed.name, spec.image, api)


def _turn(spec: Spec) -> Iterator[OptionArgv]:
    """Yield the program by which a deployment on one shared Spark waits for its turn to load."""
    if spec.in_turn and not spec.group:
        yield (host_layout.TURN_PROGRAM, spec.deployment.name, "--")


def command(spec: Spec, launch: str) -> list[OptionArgv]:
    """Return the whole launch as groups of arguments: an option with its values is one group. `launch` is its
    fingerprint."""
    labels = {
        host_layout.DEPLOYMENT_LABEL: spec.deployment.name,
        host_layout.LAUNCH_LABEL: launch,
        host_layout.RANK_LABEL: str(spec.rank),
    }
    return [
        *supervisor(spec),
        *_turn(spec),
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
    return template.render(
        spec=spec,
        command=command(spec, launch),
        fingerprint=launch,
        pair_ports=ports.pair_ports(spec.port_set),
        cache=shlex.quote(cache_folder(spec)),
        floor_bytes=memory.floor_bytes(spec.recipe),
        layout=host_layout,
    )


def env_file(secrets: Mapping[str, str], spec: Document | None = None) -> str:
    """The env file: secrets and nothing else, of a spec as JSON those that it uses. Raises ValueError for a value that
    is not one line."""
    used = {name: value for name, value in sorted(secrets.items()) if not spec or name in spec["secrets"]}
    for name, value in used.items():
        if "\n" in value:
            raise ValueError(f"vllm_secrets.{name} has a line break; an env file holds one line per variable")
    return templates().get_template("secrets.env.j2").render(secrets=used)


def unit_file() -> str:
    """The unit, the same text for every deployment."""
    return unchanged("vllm@.service")
