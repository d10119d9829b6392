"""The bench client against a server that streams by a script: error of each figure, and the client's own CPU time.

The server is a process of its own on the loopback address. It has no limits and cannot fail; tests/unit has the exact
figures of scripts without a network. Prints one line per script: figure, script, measured, difference.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench_streams import steady, usage
from fakes.scripted_engine import Event, Stream, to_json
from vllm_spark.node.bench import figures
from vllm_spark.node.bench.server import Server
from vllm_spark.node.bench.stream import Endpoint

PROGRAM = Path(__file__).parents[1] / "fakes" / "scripted_engine.py"
STREAMS = 64
# Of a dense 31B and of a 26B with a drafter, and a stream as fast as no Spark is.
SLOW = steady(40, first=1.0, gap=0.143)
DRAFTED = steady(150, first=0.5, gap=0.05, per_chunk=3)
FAST = steady(400, first=0.2, gap=0.01)
# Name: (stream, number of streams, figures of the script).
SCRIPTS: dict[str, tuple[Stream, int, dict[str, float]]] = {
    "7 tok/s, one token a chunk": (
        Stream(SLOW, usage(SLOW)),
        1,
        {"decode": 1 / 0.143, "first_token": 1000, "prefill": 500, "request": 1.0 + 39 * 0.143},
    ),
    "60 tok/s, three tokens a chunk": (
        Stream(DRAFTED, usage(DRAFTED)),
        1,
        {"decode": 60, "first_token": 500, "prefill": 1000},
    ),
    "a role 0.8 s before the first token": (
        Stream([Event(0.2, []), *(events := steady(100, first=1.0, gap=0.02))], usage(events)),
        1,
        {"decode": 50, "first_chunk": 200, "first_token": 1000},
    ),
    "100 tok/s": (Stream(FAST, usage(FAST)), 1, {"decode": 100, "first_token": 200}),
    f"{STREAMS} streams of 100 tok/s": (Stream(FAST, usage(FAST)), STREAMS, {"total": 100 * STREAMS, "decode": 100}),
}


def measure(stream: Stream, streams: int) -> tuple[dict[str, float], float]:
    """Return (the figures of one run, the share of one core that the client used)."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as script:
        script.write(to_json([stream]))
        script.flush()
        command = [sys.executable, str(PROGRAM), script.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                server = Server.connect(Endpoint(f"http://127.0.0.1:{process.stdout.readline().strip()}"))
                bodies = [server.body([{"role": "user", "content": "x"}], 1, {})] * streams
                began, cpu = time.perf_counter(), time.process_time()
                traces = server.send(bodies)
                share = (time.process_time() - cpu) / (time.perf_counter() - began)
            finally:
                process.stdin.close()
    failed = [trace.error for trace in traces if trace.error]
    if failed:
        raise SystemExit(f"{len(failed)} of {streams} streams failed: {failed[0]}")
    return figures.of_run(traces, None), share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    for name, (stream, streams, truth) in SCRIPTS.items():
        results = [measure(stream, streams) for _ in range(runs)]
        for metric, expected in truth.items():
            worst = max((values[metric] / expected - 1 for values, _ in results), key=abs)
            print(f"{name:<36} {metric:<12} script {expected:9.2f}   worst of {runs} runs {100 * worst:+.2f} %")
        print(f"{name:<36} client's CPU  {100 * max(share for _, share in results):.1f} % of a core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
