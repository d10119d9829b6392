"""Exit status of the bench's commands: 0 good, 1 worse, worthless or unknown, 2 wrong arguments or a refusal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from vllm_spark.core.refusal import RefusedError

REFUSED = 2


@contextmanager
def refusal_is_2() -> Iterator[None]:
    """Print a refusal and end with status 2, because 1 is a verdict. Raises SystemExit."""
    try:
        yield
    except RefusedError as error:
        print(error, file=sys.stderr)
        raise SystemExit(REFUSED) from error
