"""The width of each part of a checkpoint, from the tensors of its headers. Pure.

A module is a weight with its scales. Its width follows from the dtype of the weight, and from the dtype and the number
of its scales: the name of a repository or of a quantisation is not read.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from vllm_spark.authoring.source import Tensor
from vllm_spark.sizing import checkpoint_layout

# Endings of a tensor's name -> its role in a module.
ROLES: tuple[tuple[str, str], ...] = (
    ("weight_scale_inv", "scale"), ("weight_global_scale", "other"), ("weight_zero_point", "other"),
    ("input_global_scale", "other"), ("weight_scale_2", "other"), ("weight_packed", "weight"),
    ("weight_shape", "other"), ("weight_scale", "scale"), ("input_scale", "other"), ("qweight", "weight"),
    ("qzeros", "other"), ("scales", "scale"), ("blocks", "weight"), ("g_idx", "other"), ("k_scale", "other"),
    ("v_scale", "other"), ("bias", "other"), ("weight", "weight"), ("scale", "scale"),
)  # fmt: skip
ENDINGS = dict(ROLES)
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
LAYER = re.compile(r"\.(?:layers|blocks|h)\.(\d+)\.")

# dtype of an unquantised weight. The engine casts FP32 to BF16.
PLAIN = {"BF16", "F16", "F32"}
FP8 = {"F8_E4M3", "F8_E5M2"}
# Scales that are powers of two (MX formats), also stored as bytes.
MX_SCALES = {"U8", "F8_E8M0"}
# Weights per scale -> width.
INT4 = {32: "int4-g32", 128: "int4-g128"}
MX_GROUP, NV_GROUP = 32, 16
# Half of what a part may consist of besides the one width that names it: norms, small projections, biases.
PURE = 0.98
MATRIX = 2


@dataclass(slots=True)
class Part:
    """Weights of a part by width, the layers that have it, and modules whose width is not known."""

    weights: Counter[str] = field(default_factory=Counter)
    layers: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)

    def layout(self) -> str | dict[str, int] | None:
        """Return the width, a mixture in layers, or None if a module's width is not known."""
        if self.unknown or not self.weights:
            return None
        total = sum(self.weights.values())
        name, most = self.weights.most_common(1)[0]
        if most >= PURE * total:
            return name
        layers = max(len(self.layers), 1)
        shares = {width: round(layers * count / total) for width, count in self.weights.items()}
        mixed = {width: count for width, count in shares.items() if count}
        return mixed if len(mixed) > 1 else name


@lru_cache(maxsize=4096)
def part_of(name: str) -> str:
    """Return the part that a tensor belongs to, or an empty text for a norm and the like."""
    return next((part for part, pattern in checkpoint_layout.PARTS.items() if pattern.search(name)), "")


def parts(tensors: Mapping[str, Tensor], layers: int) -> dict[str, Part]:
    """Return the parts of a checkpoint. Layers from number `layers` on are the model's own drafting head."""
    modules: dict[str, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for name, tensor in tensors.items():
        module, role = _module(name)
        modules[module][role].append(tensor)
    found: dict[str, Part] = defaultdict(Part)
    for module, by_role in modules.items():
        part = _part(module, layers)
        if part and by_role["weight"]:
            _add(found[part], module, by_role["weight"], by_role["scale"])
    return dict(found)


def _module(name: str) -> tuple[str, str]:
    """Return the module of a tensor and its role in it. Fused experts have no ending, or one behind an underscore."""
    module, _, ending = name.rpartition(".")
    if ending in ENDINGS:
        return module, ENDINGS[ending]
    fused, _, ending = name.rpartition("_")
    return (fused, ENDINGS[ending]) if ending in ENDINGS else (name, "weight")


def _part(module: str, layers: int) -> str:
    # The patterns expect the tensor's name, which ends with its role.
    part = part_of(NUMBER.sub("0", f"{module}.weight"))
    match = LAYER.search(f"{module}.")
    beyond = match and layers and int(match[1]) >= layers and part not in {"vision", "drafter"}
    return "drafter" if beyond else part


def _add(part: Part, module: str, weights: Iterable[Tensor], scales: list[Tensor]) -> None:
    match = LAYER.search(f"{module}.")
    part.layers.add(match[1] if match else module)
    for weight in weights:
        width, count = width_of(weight, scales)
        # A vector is a norm or a bias. It is counted, and does not name the width.
        if width:
            part.weights[width] += count
        elif len(weight.shape) >= MATRIX:
            part.unknown.append(
                f"{module}: {weight.dtype} with {', '.join(sorted({s.dtype for s in scales})) or 'no scale'}"
            )


def width_of(weight: Tensor, scales: list[Tensor]) -> tuple[str, int]:
    """Return the width of a module and its number of weights. The width is empty if it is not a known one."""
    count = math.prod(weight.shape)
    dtypes = {scale.dtype for scale in scales}
    scaled = sum(math.prod(scale.shape) for scale in scales)
    if weight.dtype in PLAIN:
        return "bf16", count
    if weight.dtype in FP8:
        return _fp8(weight, count, scales, dtypes), count
    if weight.dtype == "I32":
        count *= 8
        return INT4.get(round(count / scaled) if scaled else 0, ""), count
    if weight.dtype == "U8" and scaled:
        count *= 2
        group = round(count / scaled)
        if group == NV_GROUP and dtypes <= FP8:
            return "nvfp4", count
        return "mxfp4" if group == MX_GROUP and dtypes <= MX_SCALES else "", count
    return "int8" if weight.dtype == "I8" and scaled and dtypes <= PLAIN else "", count


def _fp8(weight: Tensor, count: int, scales: list[Tensor], dtypes: set[str]) -> str:
    scaled = sum(math.prod(scale.shape) for scale in scales)
    if scaled and dtypes <= MX_SCALES and round(count / scaled) == MX_GROUP:
        return "mxfp8"
    blocks = (
        bool(scaled)
        and len(weight.shape) >= MATRIX
        and all(min(scale.shape[-MATRIX:], default=1) > 1 for scale in scales)
    )
    return "fp8-block" if blocks else "fp8"
