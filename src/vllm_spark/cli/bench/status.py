"""Exit status of `bench compare` and `verdict`: 0 good, 1 worse or worthless, 2 unknown, 3 a refusal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vllm_spark.bench.verdict import State
from vllm_spark.core.refusal import RefusedError

UNKNOWN, REFUSED = 2, 3


def of(state: State) -> int:
    """Return the exit status of a state."""
    return {"good": 0, "unknown": UNKNOWN}.get(state, 1)


@contextmanager
def refusal_is_3() -> Iterator[None]:
    """Print a refusal and end with status 3, because 1 and 2 are verdicts. Raises SystemExit."""
    try:
        yield
    except RefusedError as error:
        print(error, file=sys.stderr)
        raise SystemExit(REFUSED) from error
