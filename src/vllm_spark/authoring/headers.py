"""Tensors of safetensors files from their headers, checked against the size of each file. Pure.

The hub's library has a reader, which multiplies the entries of a shape before it looks at their types: a number and a
text of a few bytes each then take gigabytes of memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from vllm_spark.authoring.source import Tensor
from vllm_spark.core import text

# The bytes that hold the length of the header, and the longest header.
COUNT = 8
MAX_BYTES = 25_000_000
# An entry that describes the file and no tensor.
METADATA = "__metadata__"
MOST_DIMENSIONS = 16
LARGEST = 1 << 63
# Bits of an element. A dtype that is not here is kept, and its size is not checked.
BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
}


class HeaderError(Exception):
    """Raised for a header that does not describe its file."""


def length(first: bytes) -> int:
    """Return the bytes of the header of a file that begins with `first`. Raises HeaderError for an impossible one."""
    if len(first) < COUNT:
        raise HeaderError("is too small for a safetensors file")
    size = int.from_bytes(first[:COUNT], "little")
    if size > MAX_BYTES:
        raise HeaderError(f"has a header of {size} bytes, which is too big: the longest has {MAX_BYTES}")
    return size


def tensors(content: bytes, size: int, file_bytes: int) -> dict[str, Tensor]:
    """Return the tensors of a header of `size` bytes. Raises HeaderError if one of them cannot be in the file."""
    if len(content) < size:
        raise HeaderError(f"is cut in its header, which has {len(content)} of {size} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise HeaderError("has a header that is not JSON") from error
    if not isinstance(found, dict):
        raise HeaderError("has a header that is not a map of tensors")
    return {name: _tensor(name, entry, file_bytes) for name, entry in found.items() if name != METADATA}


def _tensor(name: str, entry: Any, file_bytes: int) -> Tensor:
    shown = text.one_line(name)
    fields = entry if isinstance(entry, Mapping) else {}
    shape, offsets = _counts(fields.get("shape")), _counts(fields.get("data_offsets"))
    dtype = fields.get("dtype")
    if shape is None or offsets is None or len(offsets) != len(("begin", "end")) or not isinstance(dtype, str):
        raise HeaderError(f"has a header whose tensor {shown} cannot be read")
    begin, end = offsets
    if not begin <= end <= file_bytes:
        raise HeaderError(f"has {file_bytes} bytes, and its header puts {shown} at bytes {begin} to {end}")
    bits = BITS.get(dtype)
    if bits and math.prod(shape) * bits != (end - begin) * 8:
        raise HeaderError(f"gives {shown} {end - begin} bytes for {math.prod(shape)} numbers of {dtype}")
    return Tensor(dtype, shape)


def _counts(value: Any) -> tuple[int, ...] | None:
    """Return a list of whole numbers from 0 on, or None for anything else."""
    if not isinstance(value, list) or len(value) > MOST_DIMENSIONS:
        return None
    return tuple(value) if all(type(one) is int and 0 <= one < LARGEST for one in value) else None
