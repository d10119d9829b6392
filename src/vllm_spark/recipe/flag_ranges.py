"""Types and ranges of well-known flags, for every version of the engine.

The engine's parser accepts any integer, and its configuration refuses the value after the old server has stopped.
recipe.engine_arguments knows more of the versions that have data.

Source: the fields of vLLM's configuration classes (vllm/config: ModelConfig, SchedulerConfig, CacheConfig,
ParallelConfig), which have the same bounds in 0.19 to 0.30.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from vllm_spark.core.fault import Fault
from vllm_spark.core.types import Document

# No model of the catalogue has a longer context, and no Spark holds more tokens or sequences.
MOST = 2**31 - 1

# Flag -> (the least and the greatest value, a value outside of them that the engine also takes).
COUNTS: dict[str, tuple[int, int, tuple[object, ...]]] = {
    "max-model-len": (1, MOST, (-1, "auto")),
    "max-num-seqs": (1, MOST, ()),
    "max-num-batched-tokens": (1, MOST, ()),
    "max-num-partial-prefills": (1, MOST, ()),
    "max-long-partial-prefills": (1, MOST, ()),
    "long-prefill-token-threshold": (0, MOST, ()),
    "max-logprobs": (-1, MOST, ()),
    "block-size": (1, MOST, ()),
    "num-gpu-blocks-override": (1, MOST, ()),
    "pipeline-parallel-size": (1, 1, ()),
    "data-parallel-size": (1, 1, ()),
    "seed": (-(2**63), 2**63 - 1, ()),
}
# Flags without a value.
SWITCHES = (
    *("enforce-eager", "enable-prefix-caching", "enable-chunked-prefill", "enable-auto-tool-choice"),
    *("trust-remote-code", "async-scheduling", "language-model-only", "disable-log-requests", "enable-expert-parallel"),
)
# Flag -> (pattern of its values, what they are).
WORDS = {
    "dtype": (re.compile("auto|bfloat16|float|float16|float32|half"), "auto, bfloat16, float16, float32 or half"),
    "kv-cache-dtype": (
        re.compile(r"auto|bfloat16|float16|(fp8|nvfp4)(_\w+)?|turboquant_\w+|int\d\w*"),
        "auto, bfloat16, fp8 or another name of the engine's list",
    ),
}
# What bounds of one value mean.
ONE_GPU = "1, because a Spark has one GPU"


def faults(args: Document) -> Iterator[Fault]:
    """Yield a fault for each value that no engine takes."""
    for flag, (least, most, others) in COUNTS.items():
        if flag not in args or args[flag] in others:
            continue
        value = args[flag]
        if isinstance(value, bool) or not isinstance(value, int):
            yield Fault(f"args.{flag}: {_shown(value)}", "a whole number without quotes")
        elif not least <= value <= most:
            yield Fault(f"args.{flag}: {value}", ONE_GPU if least == most else f"{least} to {most}")
    for flag in SWITCHES:
        if not isinstance(args.get(flag, True), bool):
            yield Fault(f"args.{flag}: {_shown(args[flag])}", "true or false, because the flag has no value")
    for flag, (pattern, words) in WORDS.items():
        value = args.get(flag, "auto")
        if not (isinstance(value, str) and pattern.fullmatch(value)):
            yield Fault(f"args.{flag}: {_shown(value)}", words)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"  # noqa: PLR2004  one line of a message
