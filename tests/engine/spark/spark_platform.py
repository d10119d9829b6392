"""Make the engine use the platform of a Spark, through the entry point in vllm_spark_platform-1.dist-info."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

# The kernels that vLLM's CUDA platform imports, and the functions that 0.19 calls during the import. No other kernel is
# called before a model is loaded.
KERNELS = ("_C", "_C_stable_libtorch")
ASKED = ("cutlass_scaled_mm_supports_fp8", "cutlass_scaled_mm_supports_block_fp8", "cutlass_group_gemm_supported")


def register() -> str:
    """Return the class of the platform, for the group `vllm.platform_plugins`."""
    for name in KERNELS:
        sys.modules.setdefault(f"vllm.{name}", ModuleType(f"vllm.{name}"))
    for name in ASKED:
        setattr(torch.ops._C, name, lambda capability: True)
    return "spark_cuda.SparkPlatform"
