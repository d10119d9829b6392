"""The least size of weights, from the name of a repository and from a quantisation."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_spark.authoring import least_size


@pytest.mark.parametrize(
    ("name", "billions_of_bytes"),
    [
        ("MiniMaxAI/MiniMax-M2.5", 0),
        ("Qwen/Qwen3.5-397B-A17B-FP8", 397),
        ("Intel/Qwen3.5-397B-A17B-int4-AutoRound", 198.5),
        ("Qwen/Qwen3-235B-A22B", 117.5),
        ("openai/gpt-oss-120b", 60),
        ("google/gemma-4-E4B-it", 0),
        ("mistralai/Mixtral-8x22B-v0.1", 0),
        ("owner/Model-230B-BF16", 460),
        ("owner/Model-230B-NVFP4-FP8", 129.375),
        ("owner/Model-230B-2bit", 28.75),
        ("owner/MiniMax-M3-REAP25-320B-NVFP4", 0),
        ("owner/Llama-70B-distilled-8B", 4),
        ("230B/model", 0),
    ],
)
def test_a_name_tells_the_least(name: str, billions_of_bytes: float) -> None:
    assert least_size.of_name(name) == billions_of_bytes * 1e9


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quantization": {"quant_algo": "NVFP4"}}, 4.5),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"format": "nvfp4-pack-quantized", "config_groups": {"g": {"weights": {"num_bits": 4}}}}, 4.5),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": "NVFP4"}}, 4.5),
        ({"quant_method": "gptq", "bits": 3}, 3),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}}, 8),
        ({"quant_method": "of tomorrow"}, 1),
    ],
)
def test_a_quantisation_tells_the_fewest_bits(quantisation: dict[str, Any], bits: float) -> None:
    assert least_size.bits_of(quantisation) == bits
