"""Memory of the host that flags take, row by row of host_memory.yml."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vllm_spark.core import paths, strict_yaml
from vllm_spark.core.units import GIB
from vllm_spark.recipe import engine_flags, host_memory, known_issues, loader

# Flags and variables whose names speak of memory, and which take none of the host's or too little to count.
REASONS = strict_yaml.load_own((paths.ROOT / "tests" / "data" / "no_host_memory.yml").read_text(encoding="utf-8"))
NONE = {name for names in REASONS.values() for name in names}
NAMES = re.compile(
    r"offload|(^|-)cpu(-|$)|swap|cache-gb|memory|lora|pin-|(^|-)shm|host-pool|buffer|-(gb|gib|mb|bytes)$|prefetch"
    r"|transfer-config|engram|(^|_)(CPU|SHM|OFFLOAD|PIN|UVA|SWAP|BUFFER|LORA)(_|$)|_(GB|MB|BYTES|SIZE)$|CACHE_MB"
)


def recipe(version: str = "0.30.0", ranks: int = 1, executor: str = "uni", **blocks: Any) -> dict[str, Any]:
    return {
        "engine": {"version": version},
        "topology": {"nodes": ranks, "tensor_parallel": ranks, "executor": executor},
        "model": {"repository": "google/gemma-4-31B-it"},
        "memory": {},
        "args": {},
        "env": {},
        **blocks,
    }


def found(document: dict[str, Any], *, vision: bool = False) -> dict[str, float]:
    """Return what -> GiB, without the processes. An adapter is 1 GiB, a group of layers 2."""
    sizes = {"object store": GIB, "LoRA adapter": GIB, "layer group": 2 * GIB}
    parts = host_memory.taken(document, sizes, vision=vision)
    return {part.what: round(part.bytes / GIB, 3) for part in parts if not part.base}


def connector(name: str, **extra: Any) -> dict[str, Any]:
    return {"kv-transfer-config": {"kv_connector": name, "kv_connector_extra_config": extra}}


RADIX = {"repository": "RadixArk/Qwen3.8-Flash-Next-NVFP4"}
KV, WEIGHTS, IMAGES = "KV cache on the host", "weights on the host", "cache of images"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (recipe(), {}),
        (recipe(args={"kv-offloading-size": 100}), {KV: 100}),
        # 320,001,536 rows of 160 bytes that stay in the files.
        (recipe(model=RADIX, env={"VLLM_PLE_TABLE_MEMORY": "disk"}), {"table of n-grams on the SSD": 47.684}),
        (recipe(model=RADIX, env={"VLLM_PLE_TABLE_MEMORY": "ram"}), {}),
        (recipe(args={"kv-offloading-size": "12.5"}), {KV: 12.5}),
        # The flag names all ranks together.
        (recipe(args={"kv-offloading-size": 100}, ranks=2, executor="mp"), {KV: 50}),
        (recipe("0.21.0", args={"kv-offloading-size": 4, "kv-offloading-backend": "lmcache"}), {KV: 4}),
        # From 0.23.0 on LMCache is a server of its own.
        (recipe("0.24.0", args={"kv-offloading-size": 4, "kv-offloading-backend": "lmcache"}), {}),
        (recipe(args=connector("OffloadingConnector", cpu_bytes_to_use=8 * GIB)), {KV: 8}),
        (recipe(args=connector("OffloadingConnector", cpu_bytes_to_use="8G")), {KV: 8}),
        (recipe(args=connector("SimpleCPUOffloadConnector")), {KV: 8}),
        (recipe(args=connector("SimpleCPUOffloadConnector", cpu_bytes_to_use_per_rank=GIB)), {KV: 1}),
        (recipe(args=connector("LMCacheConnectorV1")), {KV: 5}),
        (recipe(args=connector("LMCacheConnectorV1"), env={"LMCACHE_MAX_LOCAL_CPU_SIZE": "20"}), {KV: 20}),
        (recipe(args=connector("LMCacheConnectorV1"), env={"LMCACHE_LOCAL_CPU": "False"}), {}),
        (recipe(args=connector("LMCacheConnectorV1", **{"lmcache.max_local_cpu_size": 7})), {KV: 7}),
        (recipe(args=connector("HiSparseConnector", host_pool_gib=9)), {KV: 9}),
        (recipe("0.21.0", args=connector("P2pNcclConnector")), {KV: 32}),
        (recipe(args={"kv-transfer-config": '{"kv_connector": "MultiConnector", "kv_connector_extra_config": '
         '{"connectors": [{"kv_connector_extra_config": {"cpu_bytes_to_use": 1073741824}}, '
         '{"kv_connector_extra_config": {"cpu_bytes_to_use": 1073741824}}]}}'}), {KV: 2}),
        (recipe(args={"cpu-offload-gb": 64}), {WEIGHTS: 64}),
        (recipe(args={"offload-group-size": 8, "offload-num-in-group": 3}), {WEIGHTS: 6}),
        (recipe(args={"offload-group-size": 8, "offload-backend": "uva"}), {}),
        (recipe(args={"enable-lora": True, "max-loras": 2, "max-cpu-loras": 6}),
         {"slots of LoRA adapters": 2, "LoRA adapters on the host": 6}),
        (recipe(args={"enable-lora": True}), {"slots of LoRA adapters": 1, "LoRA adapters on the host": 1}),
        (recipe(args={"max-loras": 4}), {}),
        (recipe(args={"ec-transfer-config": {"ec_connector_extra_config": {"ec_cpu_bytes": GIB}}}),
         {"images of an encoder": 1}),
        (recipe("0.33.0", executor="mp", args={"enable-shm-tensor-arena": True}), {"tensors between processes": 2}),
        (recipe(env={"VLLM_XGRAMMAR_CACHE_MB": "1024"}), {"grammars": 1}),
        (recipe(args={"mm-ipc-gpu-memory-gb": 3}), {"images decoded on the GPU": 3}),
    ],
)  # fmt: skip
def test_a_flag_takes_memory_of_the_host(document: dict[str, Any], expected: dict[str, float]) -> None:
    assert found(document) == expected


@pytest.mark.parametrize(
    ("args", "gib"),
    [
        ({}, 4),
        ({"mm-processor-cache-gb": 0}, 0),
        ({"mm-processor-cache-gb": 60}, 60),
        ({"mm-processor-cache-type": "shm"}, 4),
        # The API servers have copies of their own if there are several.
        ({"mm-processor-cache-gb": 2, "api-server-count": 3}, 6),
    ],
)
def test_a_model_with_a_tower_has_a_cache_of_images(args: dict[str, Any], gib: float) -> None:
    assert found(recipe(args=args), vision=True).get(IMAGES, 0) == gib
    assert IMAGES not in found(recipe(args=args))


@pytest.mark.parametrize(("executor", "processes"), [("uni", 2), ("mp", 3), ("ray", 3)])
def test_the_processes_of_a_server_are_counted(executor: str, processes: int) -> None:
    base = {
        part.what: part.bytes
        for part in host_memory.taken(recipe(executor=executor), {"object store": 9}, vision=False)
    }
    assert base.pop("processes of the server") == processes * 1256 * (1 << 20)
    assert base == ({"object store of Ray": 9} if executor == "ray" else {})


@pytest.mark.parametrize(
    ("document", "unknown"),
    [
        (recipe(args=connector("MooncakeStoreConnector")), [KV]),
        (recipe(args=connector("LMCacheConnectorV1"), env={"LMCACHE_CONFIG_FILE": "/x"}), [KV]),
        (recipe(args={"kv-transfer-config": {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}}),
         ["buffer of the KV connector"]),
        (recipe(model={"repository": "nvidia/Qwen3.8-Flash-Next-NVFP4"}), ["tables of n-gram embeddings on the host"]),
        (recipe(model={"repository": "nvidia/Qwen3.8-Flash-Next-NVFP4"}, env={"VLLM_PLE_CPU_OFFLOAD": "0"}), []),
        (recipe(args={"kv-offloading-size": 3}), []),
    ],
)  # fmt: skip
def test_an_amount_that_no_flag_tells_is_unknown(document: dict[str, Any], unknown: list[str]) -> None:
    assert (
        host_memory.unknown(document, {"object store": 1, "LoRA adapter": 1, "layer group": 1}, vision=True) == unknown
    )


@pytest.mark.parametrize(
    ("version", "args", "size", "needed"),
    [
        ("0.30.0", {"kv-offloading-size": 100}, "16g", "100g or more"),
        ("0.30.0", {"kv-offloading-size": 100}, "100g", ""),
        ("0.30.0", {"kv-offloading-size": 9}, None, "9g or more"),
        # Before 0.27.0 the cache was in memory of its own.
        ("0.24.0", {"kv-offloading-size": 100}, "16g", ""),
        ("0.30.0", {"mm-processor-cache-type": "shm", "mm-processor-cache-gb": 20}, "16g", "20g or more"),
        ("0.30.0", {"mm-processor-cache-gb": 20}, "16g", ""),
    ],
)
def test_what_lies_in_shared_memory_must_fit_there(
    version: str, args: dict[str, Any], size: str | None, needed: str
) -> None:
    document = recipe(version, args=args, runtime={"shm_size": size} if size else {})
    assert "".join(fault.expected for fault in host_memory.shm_faults(document)) == needed


def test_shared_memory_that_is_too_small_is_refused_before_a_start() -> None:
    document = loader.merged(loader.load("gpt-oss-120b"), {"args": {"kv-offloading-size": 20}})
    [refusal] = known_issues.refusals(known_issues.of_closed(document), ())
    assert refusal.id == "shared-memory-too-small"
    assert "runtime.shm_size: 16g, and args.kv-offloading-size takes 20 GiB of /dev/shm" in refusal.what


@pytest.mark.parametrize(("version", "share"), [("0.19.1", 0.9), ("0.20.0", 0.92), ("0.33.0", 0.92)])
def test_the_engine_has_a_share_without_the_flag(version: str, share: float) -> None:
    assert host_memory.utilization(recipe(version)) == share
    assert host_memory.utilization(recipe(version, memory={"utilization": 0.4})) == 0.4


def test_every_row_has_a_size() -> None:
    sizes = {"GiB", "MiB", "byte", "object store", "LoRA adapter", "layer group", "unknown"}
    for row in host_memory.table()["rows"]:
        assert re.sub(r"^\d+ ", "", row["unit"]) in sizes, row
        assert row.get("settings") or "default" in row, row


def read_names() -> set[str]:
    """Return the flags and variables of the table."""
    return {
        re.sub(r"^(args|env)\.", "", setting).split(".")[0]
        for row in host_memory.table()["rows"]
        for setting in [*row.get("settings", ()), *row.get("when", {}).get("settings", {})]
    }


def names_of(version: str) -> set[str]:
    engine = engine_flags.load(version)
    return {*engine.flags, *engine.variables}


@pytest.mark.parametrize("version", engine_flags.versions())
def test_every_flag_whose_name_speaks_of_memory_was_read(version: str) -> None:
    """A flag of a new version is red here until somebody has read in the engine what it takes."""
    assert {name for name in names_of(version) if NAMES.search(name)} - read_names() - NONE == set()


def test_no_reason_is_left_over() -> None:
    assert set().union(*map(names_of, engine_flags.versions())) >= NONE
    assert not NONE & read_names()
