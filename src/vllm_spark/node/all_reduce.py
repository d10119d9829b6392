"""Time an all-reduce of few bytes and one of many between the ranks of a server.

Its arguments are RANK RANKS ADDRESS PORT. It runs in the container of the server's image on every rank at the same
time, and the first rank prints one line of JSON. The ranks meet at ADDRESS, that of the first. With a GPU it is NCCL's
all-reduce, otherwise gloo's, and the line says which. Beside the standard library it needs the image's own torch.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from statistics import median
from typing import Any

# Bytes of a message, and the calls that are timed together: a step of an engine issues them one behind the other, too.
# 16 KiB are a token of a model of width 8,192 in 16 bits, and 64 MiB its prompt of 4,096 tokens.
SIZES = ((16 * 1024, 50), (64 * 1024**2, 4))
# The median is of so many times.
TIMES = 9
# Seconds in which all ranks must appear, and every call must end.
WAIT_S = 90
# The first word of the line that the first rank prints, among those of NCCL.
MARK = "all_reduce"


def main() -> None:
    rank, ranks, address, port = sys.argv[1:]
    torch, dist = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
    gpu = bool(torch.cuda.is_available())
    backend = "nccl" if gpu else "gloo"
    dist.init_process_group(
        backend,
        init_method=f"tcp://{address}:{port}",
        rank=int(rank),
        world_size=int(ranks),
        timeout=timedelta(seconds=WAIT_S),
    )
    device = "cuda" if gpu else "cpu"
    wait = torch.cuda.synchronize if gpu else _nothing
    calls = [[size, 1e6 * seconds(torch.ones(size // 4, device=device), dist, count, wait)] for size, count in SIZES]
    if int(rank) == 0:
        print(json.dumps({MARK: {"backend": backend, "ranks": int(ranks), "calls": calls}}), flush=True)
    dist.destroy_process_group()


def seconds(ones: Any, dist: Any, count: int, wait: Callable[[], object]) -> float:
    """Return the median time of one call over `count` calls. `ones` is a tensor of 32-bit ones. Raises ValueError if
    the ranks do not get the sum."""
    dist.all_reduce(ones)
    if float(ones.min()) != dist.get_world_size() or float(ones.max()) != dist.get_world_size():
        raise ValueError(f"the sum of {dist.get_world_size()} ranks has {float(ones.min())} and {float(ones.max())}")
    # The sum of zeros stays one, however often it is reduced.
    ones.zero_()
    times = []
    for _ in range(1 + TIMES):
        dist.barrier()
        wait()
        begun = time.perf_counter()
        for _ in range(count):
            dist.all_reduce(ones)
        wait()
        times.append((time.perf_counter() - begun) / count)
    # The first ones set channels up.
    return median(times[1:])


def _nothing() -> None:
    """Stand for the wait for a GPU."""


if __name__ == "__main__":
    main()
