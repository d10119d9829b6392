"""A plugin of the engine (vllm.general_plugins): every step takes at least PACE_S seconds.

Two cores serve the engine and the client that measures it, so a step of the CPU engine takes a different time in every
run. With a pause the step is long compared with that noise, and the tools differ by their definitions alone.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

PACE_S = float(os.environ.get("BENCH_PACE_S", "0"))


def register() -> None:
    """Delay the model runner's execute_model. The engine calls it in each of its processes."""
    from vllm.v1.worker import gpu_model_runner  # noqa: PLC0415 - only the engine has it

    runner = gpu_model_runner.GPUModelRunner
    if not hasattr(runner, "paced"):  # a process may load its plugins twice
        runner.execute_model, runner.paced = _paced(runner.execute_model), True


def _paced(execute: Any) -> Any:
    @functools.wraps(execute)
    def paced(*args: Any, **options: Any) -> Any:
        ends = time.monotonic() + PACE_S
        output = execute(*args, **options)
        time.sleep(max(0.0, ends - time.monotonic()))
        return output

    return paced
