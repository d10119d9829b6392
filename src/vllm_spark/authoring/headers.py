"""Tensors of safetensors files from what the hub's library parsed, checked against the size of each file. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from huggingface_hub.utils import SafetensorsFileMetadata  # type: ignore[attr-defined]  # in its docs

from vllm_spark.authoring.source import Tensor

# Bits of an element. A dtype that is not here is kept, and its size is not checked.
BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
}


class HeaderError(Exception):
    """Raised for a header that does not describe its file."""


def tensors(metadata: SafetensorsFileMetadata, file_bytes: int) -> dict[str, Tensor]:
    """Return the tensors of a file. Raises HeaderError if one of them cannot be in a file of this size."""
    return {name: _tensor(name, info, file_bytes) for name, info in metadata.tensors.items()}


def _tensor(name: str, info: Any, file_bytes: int) -> Tensor:
    try:
        begin, end = (int(offset) for offset in info.data_offsets)
        shape = tuple(int(size) for size in info.shape)
        dtype = str(info.dtype)
    except (TypeError, ValueError) as error:
        raise HeaderError(f"has a header whose tensor {name} cannot be read") from error
    if not 0 <= begin <= end <= file_bytes or any(size < 0 for size in shape):
        raise HeaderError(f"has {file_bytes} bytes, and its header puts {name} at bytes {begin} to {end}")
    bits = BITS.get(dtype)
    if bits and math.prod(shape) * bits != (end - begin) * 8:
        raise HeaderError(f"gives {name} {end - begin} bytes for {math.prod(shape)} numbers of {dtype}")
    return Tensor(dtype, shape)
