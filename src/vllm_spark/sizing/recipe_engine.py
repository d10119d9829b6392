"""What the flags of a recipe change about the time of a step: graphs, and the kernels of narrow weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_spark.core.engine_version import release
from vllm_spark.core.types import Document
from vllm_spark.recipe import flag_names

# Flags that choose the kernels of linear layers and of experts, and the variables that force Marlin for 4 and 8 bits.
BACKENDS = ("linear-backend", "moe-backend")
FORCED, FORCED_8 = "VLLM_NVFP4_GEMM_BACKEND", "VLLM_TEST_FORCE_FP8_MARLIN"
# Widths that the engine computes with Marlin on a Spark if no flag says otherwise.
ALWAYS_MARLIN = ("int4-g32", "int4-g128", "mxfp4")

# max-num-batched-tokens on a Spark without the flag, by release; the mode `throughput` doubles it. The engine has 2048
# for a GPU whose memory NVML does not tell, such as a GB10 (engine/arg_utils.py of 0.32.0; a log of one with 0.27.1).
# Three logs of a GB10 with 0.30.0 and without the flag have 4096 (lab/forecast/measured_memory.yml).
BATCHED_TOKENS = 2048
BATCHED_TOKENS_OF: Mapping[tuple[int, int], int] = {(0, 30): 4096}


@dataclass(frozen=True, slots=True)
class Engine:
    """`eager`: no CUDA graphs. `marlin` and `marlin_8`: weights of 4 bits, and of 8, are computed in 16 bits."""

    eager: bool
    marlin: bool
    marlin_8: bool


def of(recipe: Document) -> Engine:
    """Return what the flags, the variables and the layout of a recipe say."""
    args, env = recipe["args"], recipe.get("env", {})
    chosen = [str(args.get(flag, "")) for flag in BACKENDS] + [str(env.get(FORCED, ""))]
    widths = str(recipe["model"].get("layout", {}))
    marlin = any("marlin" in value for value in chosen)
    return Engine(
        eager=args.get("enforce-eager") is True,
        marlin=marlin or any(name in widths for name in ALWAYS_MARLIN),
        marlin_8=env.get(FORCED_8) == "1" or "marlin" in str(args.get("linear-backend", "")),
    )


def batched_tokens(recipe: Document) -> int:
    """Return the most tokens of one step: of the flag, or else the default of the recipe's version."""
    args = recipe["args"]
    set_by_recipe = flag_names.positive_number(args, "max-num-batched-tokens")
    default = BATCHED_TOKENS_OF.get(release(recipe["engine"]["version"]), BATCHED_TOKENS)
    return set_by_recipe or default * (2 if args.get("performance-mode") == "throughput" else 1)
