"""Bytes per weight of each part of a model, from the names of widths. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from vllm_spark.recipe.architecture import PARTS, Architecture

# Bytes per weight, with scales. NVFP4: 4 bits and one 8-bit scale per 16 weights; MXFP4 and MXFP8: one per 32.
# int4: 4 bits, and a 16-bit scale and a 4-bit zero per group. FP8 per block: one 32-bit scale per 128 x 128 weights.
WIDTHS: Mapping[str, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1 + 4 / 128**2,
    "mxfp8": 1 + 1 / 32,
    "int8": 1.0,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
    "int4-g32": 0.5 + 2.5 / 32,
    "int4-g128": 0.5 + 2.5 / 128,
}

# Bytes per weight of parts whose width no recipe names.
UNQUANTISED = 2.0

# Value of moe-backend -> multiples to which the kernels of an expert in MXFP4 fill the width of the model and their own
# (vLLM fused_moe/oracle/mxfp4.py). A Spark has Marlin without the flag.
MXFP4_MULTIPLES: Mapping[str, tuple[int, int]] = {
    "marlin": (256, 128),
    "flashinfer_trtllm": (256, 128),
    "flashinfer_cutlass": (128, 128),
    "deep_gemm": (128, 128),
    "triton": (1, 64),
    "triton_unfused": (1, 64),
    "humming": (1, 64),
    "b12x": (1, 1),
}

# A width, or a mixture of widths: width -> number of layers.
Width = str | Mapping[str, int]

# Bytes per weight of each part.
Layout = Mapping[str, float]


def widths(names: Mapping[str, Width]) -> dict[str, float]:
    """Return part -> mean bytes per weight of a recipe's layout, with the parts that follow from another one."""
    known = {part: mean(width) for part, width in names.items()}
    return known | {part: known[other] for part, other in PARTS.items() if other in known and part not in known}


def mean(width: Width) -> float:
    """Return the bytes per weight of a width or of a mixture."""
    if isinstance(width, str):
        return WIDTHS[width]
    return sum(WIDTHS[name] * count for name, count in width.items()) / sum(width.values())


def names(layout: Mapping[str, Width]) -> Iterator[str]:
    """Yield every width that a layout names."""
    for width in layout.values():
        yield from (width,) if isinstance(width, str) else width


def filled(layout: Layout, architecture: Architecture, tensor_parallel: int, backend: str = "marlin") -> float:
    """Return how much larger the engine's experts are than those in the files: 1, but for MXFP4.

    With Marlin the 2880 of gpt-oss become 3072 of the model and 2944 of a rank. `backend` is the value of moe-backend.
    """
    if architecture.experts is None or layout.get("experts") != WIDTHS["mxfp4"]:
        return 1.0
    own, inner = architecture.hidden, architecture.experts.width / tensor_parallel
    of_own, of_inner = MXFP4_MULTIPLES.get(backend, MXFP4_MULTIPLES["marlin"])
    return math.ceil(own / of_own) * of_own / own * math.ceil(inner / of_inner) * of_inner / inner
