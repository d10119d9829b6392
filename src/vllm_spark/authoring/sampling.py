"""The tensors of a long checkpoint from the headers of some of its files. Pure.

Experts that are stored one by one make headers of 20 MB and more, in which the layers of one kind are equal. Layers
that were not read are taken to be like one of their kind that was. The sizes of the files prove it: with one layer that
differs, the sum is not that of the files, and every header is read.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from vllm_spark.authoring.headers import BITS
from vllm_spark.authoring.source import Tensor

# The bytes of headers to read before the rest is inferred. JSON of one tensor has about 120 bytes.
ENOUGH_TENSORS = 60_000
# The share by which the sum may differ from the files: their headers, and norms in other files.
TOLERANCE = 0.002
LAYER = re.compile(r"(?P<before>.*?\.layers\.)(?P<number>\d+)(?P<after>\..+)")


def order(paths: Sequence[str]) -> list[str]:
    """Return the files in the order of reading, from both ends: these have what is in no layer."""
    half = (len(paths) + 1) // 2
    pairs = zip_longest(paths[:half], reversed(paths[half:]))
    return [path for pair in pairs for path in pair if path is not None]


def completed(tensors: Mapping[str, Tensor], kinds: Sequence[str], files_bytes: int) -> dict[str, Tensor] | None:
    """Return the tensors with those of the layers that were not read, or None if their sum is not `files_bytes`.

    `kinds` has a name per layer, equal for layers that are built alike.
    """
    layers: dict[tuple[str, int], dict[str, Tensor]] = defaultdict(dict)
    others: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = LAYER.fullmatch(name)
        if match and "mtp" not in match["before"] and int(match["number"]) < len(kinds):
            layers[match["before"], int(match["number"])][match["after"]] = tensor
        else:
            others[name] = tensor
    result = dict(others)
    for before in {prefix for prefix, _ in layers}:
        # A layer that is cut by the end of a file has fewer tensors than the others of its kind.
        whole: dict[str, dict[str, Tensor]] = {}
        for (prefix, number), found in layers.items():
            kind = kinds[number]
            if prefix == before and len(found) > len(whole.get(kind, {})):
                whole[kind] = found
        for number, kind in enumerate(kinds):
            result |= {f"{before}{number}{after}": tensor for after, tensor in whole.get(kind, {}).items()}
    size = sum(tensor_bytes(tensor) for tensor in result.values())
    return result if abs(size - files_bytes) <= TOLERANCE * files_bytes else None


def tensor_bytes(tensor: Tensor) -> float:
    """Return the bytes of a tensor."""
    return math.prod(tensor.shape) * BITS.get(tensor.dtype, 8) / 8
