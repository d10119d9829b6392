"""The least that the weights of a model can have in bytes, where no list of files tells their size. Pure.

It refuses what cannot fit, and promises nothing: norms, embeddings and layers that stay unquantised come on top.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.units import GB, gib
from vllm_spark.sizing import memory, reference_spark
from vllm_spark.sizing.layout import WIDTHS

DOES_NOT_FIT = register("does-not-fit", runbook="recipe-new")

# Billions of weights in the name of a repository: 122B, and not the active ones (A10B, E4B) or one expert of 8x22B.
BILLIONS = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)[Bb](?![A-Za-z0-9])")
# Models whose name tells no size -> billions of their weights, as their publishers say.
NAMED = (
    ("glm-5(?![.\\d])|glm-5\\.1", 744),
    ("kimi-k2", 1000),
    ("deepseek-(v3|r1)", 671),
    ("glm-4\\.[67](?!-flash)", 355),
)
# Words of a name or a quantisation -> bits of a weight, the fewest first. NVFP4 and MXFP4 always have scales, which
# are a part of the bits; how many scales another format of four bits has, its name does not tell.
BITS: tuple[tuple[re.Pattern[str], float], ...] = (
    (re.compile(r"\b[12](\.\d+)?[-_ ]?bit|exl[23]|aqlm"), 1),
    (re.compile(r"\b3[-_ ]?bit"), 3),
    (re.compile(r"(?<!nv)(?<!mx)fp4|int4|w4|4[-_ ]?bit|awq|gptq|autoround|auto-round"), 4),
    (re.compile(r"mxfp4"), 8 * WIDTHS["mxfp4"]),
    (re.compile(r"nvfp4"), 8 * WIDTHS["nvfp4"]),
    (re.compile(r"fp8|int8|w8|8[-_ ]?bit"), 8),
    (re.compile(r"bf16|fp16"), 16),
)
# Four bits without scales, and with them fewer than these.
FOUR_BITS, FIVE_BITS = 4, 5
# The bits of a model that names no width. gpt-oss has four bits and does not say so.
UNKNOWN_BITS, FEWEST_BITS = 4, 1
PLAIN_BITS = 16
# What helps against weights that do not fit.
FEWER_BITS = "name a checkpoint of the model with fewer bits (NVFP4, AWQ), or a smaller model"
SMALLER = "name a smaller model: with four bits a weight this one still has {:.0f} GB"
# Names of models from which experts or layers were removed.
PRUNED = re.compile(r"(?i)reap|prun")
# Keys of a quantisation with the bits of its weights.
KEYS = re.compile(r'"(?:bits|num_bits|w_bit|wbits)": (\d+)')


def of_name(repository: str) -> int:
    """Return the bytes that a model of this name has at least, 0 if the name tells no size."""
    name = repository.rpartition("/")[2]
    counts = [float(count) for count in BILLIONS.findall(name)]
    counts = counts or [billions for pattern, billions in NAMED if re.match(pattern, name.lower())]
    if not counts or PRUNED.search(name):
        return 0
    return int(min(counts) * 1e9 * _bits(name.lower(), UNKNOWN_BITS) / 8)


def fewer_bits(repository: str) -> str:
    """Return the word of a name that promises weights of fewer bits than BF16, empty if none does."""
    words = repository.rpartition("/")[2].lower()
    found = (pattern.search(words) for pattern, bits in BITS if bits < PLAIN_BITS)
    return next((match[0] for match in found if match), "")


def bits_of(quantisation: Mapping[str, Any], repository: str = "") -> float:
    """Return the fewest bits that a weight of this quantisation has, without one those that the name promises.

    A model without either is BF16.
    """
    if not quantisation:
        return _bits(fewer_bits(repository), PLAIN_BITS)
    content = json.dumps(quantisation, default=str).lower()
    numbers = [int(bits) for bits in KEYS.findall(content)]
    if not numbers:
        return _bits(content, FEWEST_BITS)
    least, with_scales = min(numbers), _bits(content, FEWEST_BITS)
    return with_scales if least == FOUR_BITS < with_scales < FIVE_BITS else least


def _bits(words: str, otherwise: float) -> float:
    return next((bits for pattern, bits in BITS if pattern.search(words)), otherwise)


def most(nodes: int, node_memory_gb: int) -> float:
    """Return the bytes of weights that so many Sparks hold beside their hosts."""
    return nodes * memory.LARGEST_SHARE * reference_spark.memory(node_memory_gb)["total"]


def too_large(name: str, size: str, nodes: int, node_memory_gb: int, fix: str) -> Refusal:
    """Return the refusal of weights of a size."""
    total = reference_spark.memory(node_memory_gb)["total"]
    return DOES_NOT_FIT(
        what=f"{name} has {size} of weights; {nodes} Spark{'s' * (nodes > 1)} of {node_memory_gb} GB hold "
        f"{most(nodes, node_memory_gb) / GB:.1f} GB beside their hosts, {gib(total)} each",
        expected="weights that fit",
        fix=f"{fix}.",
    )


def words(size_bytes: int, *, least: bool) -> str:
    """Return a size in words."""
    return f"{'at least ' * least}{size_bytes / GB:.1f} GB"
