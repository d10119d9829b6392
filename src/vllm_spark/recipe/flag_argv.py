"""One flag of `vllm serve` as words of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

# One option and its values, kept together on one line of the launch.
OptionArgv = tuple[str, ...]


def flag_argv(flag: str, value: object) -> OptionArgv:
    """Return one flag for vLLM's parser: booleans as --flag/--no-flag, maps as JSON."""
    match value:
        case True:
            return (f"--{flag}",)
        case False:
            return (f"--no-{flag}",)
        case Mapping():
            return (f"--{flag}", json.dumps(value, sort_keys=True, separators=(",", ":")))
        case str():
            return (f"--{flag}", value)
        case Sequence():
            return (f"--{flag}", *map(str, value))
        case _:
            return (f"--{flag}", str(value))
