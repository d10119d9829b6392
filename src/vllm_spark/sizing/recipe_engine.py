"""What the flags of a recipe change about the time of a step: graphs, and the kernels of narrow weights. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_spark.core.types import Document

# Flags that choose the kernels of linear layers and of experts, and the variable that forces Marlin for FP8.
BACKENDS = ("linear-backend", "moe-backend")
FORCED = ("VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_NVFP4_GEMM_BACKEND")
# Widths that the engine computes with Marlin on a Spark if no flag says otherwise.
ALWAYS_MARLIN = ("int4-g32", "int4-g128", "mxfp4")


@dataclass(frozen=True, slots=True)
class Engine:
    """`eager`: no CUDA graphs. `marlin`: narrow weights are computed in 16 bits."""

    eager: bool
    marlin: bool


def of(recipe: Document) -> Engine:
    """Return what the flags, the variables and the layout of a recipe say."""
    args, env = recipe["args"], recipe.get("env", {})
    chosen = [str(args.get(flag, "")) for flag in BACKENDS] + [str(env.get(name, "")) for name in FORCED]
    widths = str(recipe["model"].get("layout", {}))
    marlin = any("marlin" in value or value == "1" for value in chosen) or any(name in widths for name in ALWAYS_MARLIN)
    return Engine(eager=args.get("enforce-eager") is True, marlin=marlin)
