"""Speed and memory of the doctor for logs of two sizes and three kinds.

Prints MB/s and the peak of the resident memory of one process per log. It has no limits and cannot fail. The memory is
constant if both sizes have the same peak. The logs are generated: a healthy server, an engine that logs an error on
every line, and one that prints the same traceback over and over.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vllm_spark.doctor import command, diagnosis

MEGABYTE = 1_000_000
LINE = "(EngineCore pid=9) {level} 11-20 10:00:00 [{source}] {text}\n"
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "vllm/v1/engine/core.py", line 1108, in run_engine_core',
    "    engine_core.run_busy_loop()",
    "ValueError: head count {number} is not divisible by 2",
)


def serving(number: int) -> str:
    """Return the log lines of a healthy server."""
    text = (
        f"Engine 000: Avg generation throughput: {number % 900}.1 tokens/s, Running: {number % 9} reqs, Waiting: 0 reqs"
    )
    return (
        f'(APIServer pid=3) INFO:     127.0.0.1:{number % 60000} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        + LINE.format(level="INFO", source="loggers.py:259", text=text)
    )


def errors(number: int) -> str:
    """Return an error line, one of a hundred kinds."""
    return LINE.format(level="ERROR", source="core.py:1136", text=f"request {'x' * (number % 100)} was not served")


def tracebacks(number: int) -> str:
    """Return a traceback that is the same except for a number."""
    return "".join(
        LINE.format(level="ERROR", source="core.py:1136", text=line.format(number=number)) for line in TRACEBACK
    )


KINDS = {"serving": serving, "errors": errors, "tracebacks": tracebacks}


def write(file: Path, kind: str, megabytes: int) -> None:
    block = "".join(KINDS[kind](number) for number in range(5000)).encode()
    with file.open("wb") as stream:
        for _ in range(megabytes * MEGABYTE // len(block) + 1):
            stream.write(block)


def measure(file: Path) -> None:
    """Read one log in this process and print its time and memory."""
    started = time.perf_counter()
    log = command.read(str(file))
    judgement = diagnosis.judge([log])
    seconds = time.perf_counter() - started
    megabytes = file.stat().st_size / MEGABYTE
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    findings = len(judgement.findings) + len(judgement.unrecognised)
    print(
        f"{file.stem:<12} {megabytes:5.0f} MB {log.lines:8d} lines  {seconds:5.2f} s  {megabytes / seconds:5.1f} MB/s"
        f"  peak {peak:4.0f} MiB  {findings} findings"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--log", type=Path, help="measure this log in this process")
    args = parser.parse_args()
    if args.log:
        measure(args.log)
        return 0
    for kind in KINDS:
        for megabytes in args.megabytes:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / f"{kind}.log"
                write(file, kind, megabytes)
                subprocess.run([sys.executable, __file__, "--log", str(file)], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
