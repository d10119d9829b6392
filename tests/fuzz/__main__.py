"""The long run of `make fuzz`: reads damaged documents by the thousand and prints what went wrong.

Arguments: NAME=COUNT …, seed=NUMBER and minutes=NUMBER. It ends after so many minutes, with as much of each target as
of the others, and says how much that was. The exit status is 1 for a traceback, a hang, or a value that no engine
takes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz import targets

COUNTS = {
    **{"recipes": 10_000, "inventories": 2_500, "lock files": 2_500, "records": 2_500, "replies": 2_500},
    **{"checkpoints": 2_500, "imports": 2_500},
}
# Hypothesis keeps each input of one run in memory, so a run is cut into parts with seeds of their own.
PART = 250
HANG_S = 5.0
# With the start of its processes and the last input of each, a run ends within ten.
MINUTES = 8
# Seeds of the parts of a run: those of the next number begin there.
SEEDS = 1_000_000
KINDS = ("tracebacks", "hangs over 5 s", "accepted with a value that no engine takes")


class HangError(BaseException):
    """Raised by the alarm in a reader that takes longer than HANG_S."""


class TimeIsUpError(BaseException):
    """Raised for the input that would be read after the end of the run."""


def part(job: tuple[str, int, int, float]) -> tuple[str, Counter[str], dict[str, str], float]:
    """Read `count` inputs of one target until a time. Returns (target, outcomes, kind and place of a fault -> its text
    with its seed, the longest time in seconds)."""
    name, count, seed_, ends = job
    target, outcomes, found, longest = targets.TARGETS[name], Counter[str](), dict[str, str](), 0.0

    @seed(seed_)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def read(value: Any) -> None:
        nonlocal longest
        if outcomes.total() >= count:
            return
        if time.time() > ends:
            raise TimeIsUpError
        started = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, HANG_S)
        kind, text = "", ""
        try:
            outcomes[targets.run(target, value, Path(folder))] += 1
        except targets.WrongValueError as error:
            kind, text = KINDS[2], str(error)
        except HangError:
            kind, text = KINDS[1], repr(value)[:300]
        except Exception:
            kind, text = KINDS[0], traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if kind:
            outcomes[kind] += 1
            found.setdefault(f"{kind}: {place(text)}", f"{name}, seed {seed_}\n{text}\n{repr(value)[:600]}")
        longest = max(longest, time.monotonic() - started)

    signal.signal(signal.SIGALRM, _hang)
    with tempfile.TemporaryDirectory(prefix="vllm-spark-fuzz-") as folder, suppress(TimeIsUpError):
        read()
    return name, outcomes, found, longest


def place(text: str) -> str:
    """Return the last line of a traceback with the last frame, or the beginning of a message."""
    frames = [line.strip() for line in text.splitlines() if line.startswith('  File "')]
    return f"{frames[-1][:160]} {text.strip().splitlines()[-1][:120]}" if frames else text[:80]


def _hang(*_: object) -> None:
    raise HangError


def main(argv: list[str]) -> int:
    given_ = {name: int(number) for name, number in (argument.split("=") for argument in argv)}
    start, minutes = given_.pop("seed", 14), given_.pop("minutes", MINUTES)
    counts = given_ or COUNTS
    ends = time.time() + 60 * minutes
    print(f"seed={start}: {sum(counts.values())} inputs, for at most {minutes} minutes", flush=True)
    parts = [
        (done / count, (name, min(PART, count - done), start * SEEDS + index, ends))
        for name, count in counts.items()
        for index, done in enumerate(range(0, count, PART))
    ]
    jobs = [job for _, job in sorted(parts)]
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in counts}
    longest = dict.fromkeys(counts, 0.0)
    found: dict[str, str] = {}
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for name, of_part, found_in_part, slowest in pool.imap_unordered(part, jobs):
            outcomes[name] += of_part
            longest[name] = max(longest[name], slowest)
            found |= found_in_part
    for key, text in found.items():
        print(f"--- {key}\n{text}", file=sys.stderr)
    for name, counted in outcomes.items():
        wrong = ", ".join(f"{counted[kind]} {kind}" for kind in KINDS)
        print(
            f"{name}: {counted.total()} of {counts[name]} read, {counted[targets.ACCEPTED]} accepted, "
            f"{counted[targets.REFUSED]} refused, longest {longest[name]:.2f} s; {wrong}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
