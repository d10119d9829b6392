"""What the weights of a model folder are, from the headers of its safetensors files: a few megabytes instead of
all. The standard library alone. A file begins with the length of its header in 8 bytes, then that JSON, then the
tensors."""

from __future__ import annotations

import glob
import json
import os
import re

INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
# The format's own limit.
LONGEST_HEADER = 100_000_000


class SafetensorsError(Exception):
    """A file is not there, not whole or not safetensors."""


def summary(folder):
    """Of a model folder: files, bytes, and by tensor name, its numbers replaced by `*`, the bytes of each dtype.
    `error` says what is wrong with the first bad file. None where the folder does not exist."""
    if not os.path.isdir(folder):
        return None
    found = {"files": 0, "bytes": 0, "tensors": {}, "error": ""}
    try:
        for path in files(folder):
            for name, tensor in header(path).items():
                by_dtype = found["tensors"].setdefault(re.sub(r"\d+", "*", name), {})
                begin, end = tensor["data_offsets"]
                by_dtype[tensor["dtype"]] = by_dtype.get(tensor["dtype"], 0) + end - begin
            found["files"] += 1
            found["bytes"] += os.path.getsize(path)
    except (SafetensorsError, OSError) as error:
        found["error"] = str(error)
    return found


def files(folder):
    """The files that the engine reads: those of the index, without one all. Raises SafetensorsError."""
    index = os.path.join(folder, INDEX)
    if not os.path.isfile(index):
        return sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    try:
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise SafetensorsError(f"{index} is no index of weights ({error})") from error
    missing = [name for name in names if not os.path.isfile(os.path.join(folder, name))]
    if missing:
        raise SafetensorsError(f"{index} names {len(names)} files, of which {', '.join(missing)} is missing")
    return [os.path.join(folder, name) for name in names]


def header(path):
    """Tensor name -> dtype, shape and data_offsets. Raises SafetensorsError for a file that is not whole."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, LONGEST_HEADER):
            raise SafetensorsError(f"{path} has {size} bytes and a header of {length}: cut off, or not safetensors")
        try:
            tensors = json.loads(file.read(length))
            tensors.pop("__metadata__", None)
            last = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            whole = all(isinstance(tensor["dtype"], str) for tensor in tensors.values())
        except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
            raise SafetensorsError(f"{path} has a header that cannot be read ({error})") from error
    if not whole or last != size - LENGTH_BYTES - length:
        raise SafetensorsError(f"{path} has {size} bytes, and its tensors need {LENGTH_BYTES + length + last}")
    return tensors
