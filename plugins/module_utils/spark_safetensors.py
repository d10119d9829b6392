"""The weights of a model folder, from the headers of its safetensors files: a few megabytes instead of all bytes.
Standard library alone. A file starts with the length of its header in 8 bytes, followed by that JSON header and by the
tensors."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_spark.core.types import WeightFacts

INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
# The format's own limit.
MAX_HEADER_BYTES = 100_000_000


class SafetensorsError(Exception):
    """A file is missing, incomplete, or not a safetensors file."""


def summary(folder: str) -> WeightFacts | None:
    """Return files and bytes of a model folder, and the bytes of each dtype by tensor name, with `*` for the numbers
    in it. `error` describes the first bad file. None if the folder does not exist."""
    if not os.path.isdir(folder):
        return None
    tensors: dict[str, dict[str, int]] = {}
    facts: WeightFacts = {"files": 0, "bytes": 0, "tensors": tensors, "error": ""}
    try:
        for path in files(folder):
            for name, tensor in header(path).items():
                by_dtype = tensors.setdefault(re.sub(r"\d+", "*", name), {})
                begin, end = tensor["data_offsets"]
                by_dtype[tensor["dtype"]] = by_dtype.get(tensor["dtype"], 0) + end - begin
            facts["files"] += 1
            facts["bytes"] += os.path.getsize(path)
    except (SafetensorsError, OSError) as error:
        facts["error"] = str(error)
    return facts


def files(folder: str) -> list[str]:
    """Return the files that the engine reads: those of the index, or all of them without an index. Raises
    SafetensorsError."""
    index = os.path.join(folder, INDEX)
    if not os.path.isfile(index):
        return sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise SafetensorsError(f"{index} is not an index of weights ({error})") from error
    missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise SafetensorsError(f"{index} names {len(names)} files, of which {', '.join(missing)} is missing")
    return [os.path.join(folder, name) for name in names]


def header(path: str) -> dict[str, dict[str, Any]]:
    """Return tensor name -> dtype, shape and data_offsets. Raises SafetensorsError for an incomplete file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
            raise SafetensorsError(f"{path} has {size} bytes and a header of {length}: cut off, or not safetensors")
        try:
            tensors: dict[str, dict[str, Any]] = json.loads(file.read(length))
            tensors.pop("__metadata__", None)
            last = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            complete = all(isinstance(tensor["dtype"], str) for tensor in tensors.values())
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise SafetensorsError(f"{path} has a header that cannot be read ({error})") from error
    if not complete or last != size - LENGTH_BYTES - length:
        raise SafetensorsError(f"{path} has {size} bytes, and its tensors need {LENGTH_BYTES + length + last}")
    return tensors
