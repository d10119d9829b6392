"""Memory budgets of deployments that share a Spark (issue 52)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from vllm_spark.core.types import Document
from vllm_spark.core.units import GIB
from vllm_spark.node import unit_limits
from vllm_spark.recipe import architecture, loader
from vllm_spark.sizing import budget, memory, reference_spark
from vllm_spark.sizing.budget import Budget
from vllm_spark.sizing.memory import MemoryModel

TOTAL = int(121.69 * GIB)


def of(name: str, weights: float, **more: object) -> Budget:
    fields = {"engine": GIB, "host": GIB, "cache": 0, "peak": 0, "floor": 8 * GIB, "request": GIB, "longest": 8192}
    return Budget(**{"name": name, "weights": int(weights * GIB), "fixed": False, **fields, **more})  # type: ignore[arg-type]


def recipe(name: str, **memory_: int) -> Document:
    document = loader.load(name).document
    return {**document, "memory": {**document["memory"], **memory_}}


def test_the_division_does_not_depend_on_the_order() -> None:
    budgets = [of("a", 13), of("b", 6.5), of("c", 1, cache=2 * GIB, fixed=True)]
    caches = [
        {one.name: one.cache for one in budget.divided(order, TOTAL)} for order in itertools.permutations(budgets)
    ]
    assert all(one == caches[0] for one in caches)
    assert caches[0]["c"] == 2 * GIB


def test_each_gets_one_longest_request_and_an_equal_part_of_the_rest() -> None:
    divided = budget.divided([of("a", 13, request=5 * GIB - 1), of("b", 6.5, request=GIB // 2)], TOTAL)
    assert [one.cache / GIB for one in divided] == [42, 38]
    assert all(one.cache % GIB == 0 for one in divided)
    assert budget.needed(divided, TOTAL) <= TOTAL < budget.needed(divided, TOTAL) + 2 * GIB


def test_the_peak_of_one_start_stays_free_beside_the_others() -> None:
    divided = budget.divided([of("a", 13, peak=90 * GIB), of("b", 6.5)], TOTAL)
    assert divided[1].total + divided[0].peak + 8 * GIB <= budget.needed(divided, TOTAL) <= TOTAL


@pytest.mark.parametrize("names", [("gpt-oss-20b", "nemotron-3.5-lightning-nvfp4"), ("gpt-oss-20b", "bge-m3")])
def test_the_last_one_finds_its_memory_on_an_idle_spark(names: tuple[str, str]) -> None:
    """What its start waits for is available beside all that the other one may take, in either order."""
    idle = reference_spark.MEMORY
    recipes = {name: loader.load(name).document for name in names}
    parts = budget.divided([budget.of_recipe(name, one) for name, one in recipes.items()], idle["total"])
    assert not list(budget.refusals("spark1", parts, idle["total"]))
    for last in parts:
        room = memory.requirement(budget.with_budget(recipes[last.name], last, idle["total"]))
        left = idle["available"] - sum(one.total for one in parts if one is not last)
        assert unit_limits.needed(room, idle["total"]) <= left


def test_a_look_alike_has_a_part_of_its_memory_for_itself() -> None:
    assert budget.host_bytes(TOTAL) == reference_spark.HOST_BYTES
    assert budget.host_bytes(12 * GIB) == 2 * GIB


def test_an_encoder_has_no_cache_and_takes_none_of_the_others() -> None:
    encoder, chat = recipe("bge-m3"), recipe("gpt-oss-20b")
    own, beside = budget.divided([budget.of_recipe("v", encoder), budget.of_recipe("c", chat)], TOTAL)
    assert (own.cache, own.fixed) == (0, True)
    part = budget.with_budget(encoder, own, TOTAL)["memory"]
    assert "kv_cache_bytes" not in part
    assert part["utilization"] == encoder["memory"]["utilization"]
    (alone,) = budget.divided([budget.of_recipe("c", chat)], TOTAL)
    assert alone.cache - beside.cache <= own.total + GIB


def test_the_engine_of_the_measurement_has_2_2_gib() -> None:
    own = budget.of_recipe("a", {**recipe("gpt-oss-20b"), "args": {"max-num-batched-tokens": 8192}})
    assert own.engine == pytest.approx(2.2 * GIB, abs=2)
    less = budget.of_recipe("a", {**recipe("gpt-oss-20b"), "args": {"max-num-batched-tokens": 2048}})
    assert less.engine == pytest.approx(1.375 * GIB, abs=2)


def test_a_part_is_the_cache_in_bytes_and_the_share_of_the_engine_rounded_down() -> None:
    document = recipe("gpt-oss-20b")
    (own,) = budget.divided([budget.of_recipe("a", document)], 60 * GIB)
    part = budget.with_budget(document, own, 60 * GIB)
    assert part["memory"]["kv_cache_bytes"] == own.cache
    share = (own.weights + own.cache + own.engine) / (60 * GIB)
    assert share - 0.01 < part["memory"]["utilization"] <= share
    # What a start needs is the budget, with the floor.
    assert memory.required_bytes(part, 60 * GIB) == pytest.approx(own.total + own.floor, abs=2)
    assert budget.of_recipe("a", part) == budget.of_recipe("a", document)


def test_a_cache_of_the_recipe_stays() -> None:
    document = recipe("gpt-oss-20b", kv_cache_bytes=3 * GIB)
    own, _ = budget.divided([budget.of_recipe("a", document), of("b", 20)], TOTAL)
    assert (own.cache, own.fixed) == (3 * GIB, True)
    assert budget.of_recipe("a", budget.with_budget(document, own, TOTAL)) == own


def test_a_sum_that_fits_is_not_refused() -> None:
    assert not list(budget.refusals("spark1", budget.divided([of("a", 13), of("b", 80)], TOTAL), TOTAL))
    refused = list(budget.refusals("spark1", budget.divided([of("a", 13), of("b", 100)], TOTAL), TOTAL))
    assert "a 16.0 GiB (weights 13.0 GiB, cache 1.0 GiB, engine 1.0 GiB, host 1.0 GiB)" in str(refused[0])


def test_the_table_has_each_deployment_and_what_is_left() -> None:
    lines = list(budget.table("spark1", [of("a", 13, cache=10 * GIB), of("b", 6, cache=20 * GIB)], TOTAL))
    assert lines[0].endswith("host 1.0 GiB): 10.0 requests of 8,192 tokens")
    assert (
        lines[-1]
        == "memory of spark1: 53.0 GiB of 121.7 GiB together, the host itself has 9.7 GiB, 8.0 GiB stay free, "
        "51.0 GiB left"
    )


@pytest.mark.parametrize(("gib", "tokens"), [(8, 58_240), (4, 29_120), (3, 21_840), (6, 43_680)])
def test_the_tokens_are_those_of_the_measurement(gib: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3-8B and Qwen3-4B have 36 layers of 8 heads of 128 numbers in BF16, 147,456 bytes a token."""
    llama = architecture.load("llama-3.1-8b")
    own = replace(llama, attention=tuple(replace(mixer, layers=36) for mixer in llama.attention))
    document = {**recipe("gpt-oss-20b"), "memory": {"kv_cache_bytes": gib * GIB}}
    monkeypatch.setattr(memory, "model_of", lambda _: MemoryModel(own, {}, 2.0))
    assert budget.cache_tokens(document) == tokens


def test_a_mixture_of_layers_has_no_single_number_of_tokens() -> None:
    document = recipe("gemma-4-31b-bf16")
    assert budget.cache_tokens({**document, "memory": {"kv_cache_bytes": 8 * GIB}}) is None
    assert budget.cache_tokens(document) is None
