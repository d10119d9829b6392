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

# Multiples to which Marlin fills the sizes of an expert in MXFP4.
MXFP4_HIDDEN, MXFP4_INNER = 256, 128

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


def filled(layout: Layout, architecture: Architecture, tensor_parallel: int) -> float:
    """Return how much larger the engine's experts are than those in the files: 1, but for MXFP4.

    Marlin, which serves them on a Spark, fills a rank's width up to 128 and the model's to 256 (vLLM
    fused_moe/oracle/mxfp4.py): 2880 of gpt-oss become 2944 and 3072.
    """
    if architecture.experts is None or layout.get("experts") != WIDTHS["mxfp4"]:
        return 1.0
    own, inner = architecture.hidden, architecture.experts.width / tensor_parallel
    return math.ceil(own / MXFP4_HIDDEN) * MXFP4_HIDDEN / own * math.ceil(inner / MXFP4_INNER) * MXFP4_INNER / inner
