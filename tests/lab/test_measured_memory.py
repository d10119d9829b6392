"""Predicted memory against measured memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from lab.forecast import measured_memory
from lab.forecast.measured_memory import CacheRow, LoadedRow, ReservedRow
from lab.forecast.measured_rows import UNMET
from vllm_spark.core import paths, strict_yaml
from vllm_spark.core.units import GIB
from vllm_spark.recipe import loader
from vllm_spark.sizing import memory, recipe_engine, reference_spark

TOTAL = reference_spark.MEMORY["total"]

MEASURED = measured_memory.measurements()


def identity(entry: Mapping[str, Any]) -> str:
    return str(entry["id"])


@pytest.mark.parametrize("entry", MEASURED["loaded"], ids=identity)
def test_predicted_weights_match_the_measured_ones(entry: LoadedRow) -> None:
    sizes = measured_memory.model(entry).loaded_bytes(entry.get("tensor_parallel", 1))
    assert sum(sizes.values()) / GIB == pytest.approx(entry["measured"], rel=0.01)


@pytest.mark.parametrize("entry", MEASURED["cache"], ids=identity)
def test_predicted_cache_matches_the_engine_log(entry: CacheRow) -> None:
    cache = measured_memory.cache_of(entry)
    context, batched = entry["context"], entry["batched"]
    # The engine logs the room with two digits after the point.
    least, room, most = ((entry["room"] + rounding) * GIB for rounding in (-0.005, 0, 0.005))
    old = entry.get("before_0_20", False)
    logged = [measured_memory.logged_tokens(cache, size, context, batched, old) for size in (least, most)]
    assert logged[0] <= entry["tokens"] <= logged[1]
    assert measured_memory.logged_tokens(cache, room, context, batched, old) == pytest.approx(entry["tokens"], rel=3e-4)
    if "requests" in entry:
        assert measured_memory.requests(cache, room, context, batched) == pytest.approx(entry["requests"], abs=0.01)


def test_the_most_that_loading_needs_is_that_of_the_public_starts() -> None:
    more = max(entry["peak"] - entry["ready"] for entry in MEASURED["loading"])
    assert pytest.approx(more, abs=0.01) == memory.LOADING_MORE_BYTES / GIB


KEPT = [(16384, 9.26), (32768, 12.37), (65536, 18.40)]


@pytest.mark.parametrize(("batched", "kept"), KEPT)
def test_the_workspace_is_what_three_logs_of_one_server_kept(batched: int, kept: float) -> None:
    """Beside 21.97 GiB of weights and the cache, at utilization 0.8. The cache is then that of the log within 0.2 %."""
    recipe = {"engine": {"version": "0.30.0"}, "args": {"max-num-batched-tokens": batched}, "memory": {}}
    assert memory.workspace_bytes(recipe) / GIB == pytest.approx(kept, abs=0.1)


def test_public_starts_rarely_kept_more_than_the_workspace_and_never_half_as_much_again() -> None:
    """An allowance that is too small promises a cache that is not there."""
    over = []
    for start in strict_yaml.load_own((UNMET / "workspace.yaml").read_text(encoding="utf-8"))["starts"]:
        if start["weights"] and start["batched"]:
            kept = start["utilization"] * TOTAL / GIB - start["weights"] - start["room"]
            args = {"max-num-batched-tokens": start["batched"]}
            recipe = {"engine": {"version": "0.30.0"}, "args": args, "memory": {}}
            over.append(kept / (memory.workspace_bytes(recipe) / GIB))
    assert len(over) >= 25
    assert sum(share > 1 for share in over) / len(over) <= 0.2
    assert max(over) < 1.5


# The version, the flags, and max-num-batched-tokens on a Spark.
BATCHED = [
    ("0.27.1", {}, 2048),
    ("0.30.0", {}, 4096),
    ("0.32.0", {}, 2048),
    ("0.19.1.dev6", {}, 2048),
    ("0.30.0", {"max-num-batched-tokens": 8192}, 8192),
    ("0.32.0", {"performance-mode": "throughput"}, 4096),
]


@pytest.mark.parametrize(("version", "args", "tokens"), BATCHED)
def test_the_tokens_of_a_step_are_those_of_the_flag_or_of_the_version(
    version: str, args: dict[str, Any], tokens: int
) -> None:
    assert recipe_engine.batched_tokens({"engine": {"version": version}, "args": args}) == tokens


def test_each_recipe_of_today_has_a_log_or_says_that_none_is_public() -> None:
    logged = {entry["recipe"] for entry in MEASURED["loaded"] if "recipe" in entry}
    unknown = {entry["recipe"] for entry in MEASURED["unknown"]}
    today = {name for name in loader.names([paths.RECIPES]) if not name.startswith("gemma-4-") or "-awq-mtp" in name}
    assert logged.isdisjoint(unknown)
    assert today - {"qwen3.6-35b-a3b-fp8"} <= logged | unknown


@pytest.mark.parametrize("entry", [*MEASURED["loaded"], *MEASURED["cache"]], ids=identity)
def test_a_measurement_is_in_its_log(entry: Mapping[str, Any]) -> None:
    file = paths.ROOT / entry["source"]
    if not file.is_file():
        assert not entry["source"].startswith("tests/"), "a source that is a file must exist"
        return
    pattern = r"Model loading took ([\d.]+) GiB" if "measured" in entry else r"Available KV cache memory: ([\d.]+) GiB"
    assert float(entry.get("measured", entry.get("room"))) in {float(n) for n in re.findall(pattern, file.read_text())}


@pytest.mark.parametrize("entry", MEASURED["reserved"], ids=identity)
def test_the_engine_takes_its_share_of_the_total(entry: ReservedRow) -> None:
    reserved = entry["utilization"] * TOTAL / GIB
    if "cache" in entry:
        rest = reserved - entry["weights"] - entry["cache"]
        assert rest == pytest.approx(5.93, abs=0.1)
    else:
        # A worker has no API server; a desktop adds to it if the report counts the whole host.
        assert -3 <= entry["measured"] - reserved <= 8
