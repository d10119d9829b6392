"""What every vLLM takes as the value of some flags, written down apart from the toolkit.

Sources: `vllm serve --help` of 0.19.1 to 0.30.0, and the bounds of the fields in vllm/config. A launch with another
value does not start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

WHOLE = re.compile(r"[+-]?[0-9]+")
SIZE = re.compile(r"[0-9]+([kKmMgGtT])?|[0-9]+\.[0-9]+[kmgt]")
CACHE = re.compile(r"auto|bfloat16|float16|fp8(_[a-z0-9_]+)?|nvfp4|turboquant_\w+|int\w+")


def whole(least: int, most: int = 2**63 - 1) -> Callable[[str], bool]:
    return lambda word: WHOLE.fullmatch(word) is not None and least <= int(word) <= most


def size(word: str) -> bool:
    """A positive count, e.g. 4096 or 4k."""
    return SIZE.fullmatch(word) is not None and re.search("[1-9]", word) is not None


def share(word: str) -> bool:
    try:
        return 0 < float(word) <= 1
    except ValueError:
        return False


# Flag -> a test of its one word.
VALUES: dict[str, Callable[[str], bool]] = {
    "max-model-len": lambda word: size(word) or word in {"-1", "auto"},
    "max-num-seqs": size,
    "max-num-batched-tokens": size,
    "block-size": whole(1),
    "seed": whole(-(2**63)),
    "port": whole(1, 65535),
    "tensor-parallel-size": whole(1, 2),
    "pipeline-parallel-size": whole(1, 1),
    "max-logprobs": whole(-1),
    "gpu-memory-utilization": share,
    "kv-cache-memory-bytes": size,
    "dtype": lambda word: word in {"auto", "bfloat16", "float", "float16", "float32", "half"},
    "kv-cache-dtype": lambda word: CACHE.fullmatch(word) is not None,
    "host": lambda word: re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", word) is not None,
    "served-model-name": lambda word: bool(word.strip()),
}
SWITCHES = ("enable-prefix-caching", "enforce-eager")


def faults(argv: Sequence[str]) -> list[str]:
    """Return the faults of a launch: a value that no engine takes, a flag twice, or a word that no argv can hold."""
    found = [f"a NUL in {word!r}" for word in argv if "\0" in word]
    if "serve" not in argv:
        return found
    words = list(argv[argv.index("serve") + 2 :])
    flags: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:]
            if name in flags:
                found.append(f"--{name} twice")
            flags[name] = []
        elif name:
            flags[name].append(word)
    for flag, given in flags.items():
        if "_" in flag.partition(".")[0] or flag.startswith("-"):
            found.append(f"--{flag} is not in the spelling of the engine")
        if flag in VALUES and not (len(given) == 1 and VALUES[flag](given[0])):
            found.append(f"--{flag} {given}")
        if flag.removeprefix("no-") in SWITCHES and given:
            found.append(f"--{flag} {given}")
    return found
