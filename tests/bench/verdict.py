"""The power of `bench verdict`: false alarms for an unchanged server, and how slow another must be to be seen.

Each trial is a history of simulated runs of a real server (tests/fakes/bench_history.py) and a last run, which is as
fast as the others or slower. The spread between runs is sigma. The first seeds were seen while the constants of `noise`
were chosen. As many others were not, nor were the servers that are called unseen: those have the others alone. It
prints percentages and cannot fail. `--json FILE` writes them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.bench_history import Server, history
from vllm_spark.bench import compare, verdict
from vllm_spark.bench.evidence import Evidence

UNSEEN = "unseen"
# The files name no recipe, so the floor of one stream is that of a mixture of experts.
SERVERS = {
    "one stream": Server("31b-fp8.standard"),
    "streams": Server("26b-a4b-fp8.streams", several=True),
    "pair": Server("31b-fp8-tp2.standard"),
    "one stream, unseen": Server("26b-a4b-nvfp4-marlin.standard"),
    "streams, unseen": Server("31b-nvfp4-marlin.streams", several=True),
    "pair, unseen": Server("31b-fp8-tp2.depth"),
}
SIGMAS = (0.0, 0.005, 0.01, 0.02)
SLOWER = (0.0, 0.03, 0.05, 0.10)
# Earlier runs: one is a pair of runs. Fewer than five do not tell the spread between runs.
EARLIER = (1, 3, 5, 10)
SEEDS = 200
# A ratchet: each run is slower than the one before by so much, on the server of that floor.
RATCHETS = {"one stream": 0.018, "streams": 0.035, "pair": 0.08}
LONGEST = 20


def judge(runs: list[Evidence]) -> str:
    """Return the state of the last run of a history."""
    *earlier, last = runs
    return verdict.compared_state(compare.compare(earlier, last))


def states(server: str, seeds: range, sigma: float, slower: float, earlier: int) -> dict[str, float]:
    """Return the share of each state in percent."""
    template = SERVERS[server].template()
    slowness = [1.0] * earlier + [1 + slower]
    found = [judge(history(template, seed, sigma, slowness)) for seed in seeds]
    return {state: 100 * found.count(state) / len(found) for state in ("worse", "unknown", "good")}


def seen_after(server: str, seed: int, sigma: float, step: float) -> float:
    """Return the number of runs after which a ratchet is seen; infinite if it is not."""
    runs = history(SERVERS[server].template(), seed, sigma, [(1 + step) ** number for number in range(LONGEST)])
    return next((number for number in range(2, LONGEST + 1) if judge(runs[:number]) == "worse"), float("inf"))


def parts(server: str, seeds: int) -> Iterator[tuple[str, range]]:
    """Yield the parts of the seeds of a server, each with its name."""
    if UNSEEN not in server:
        yield "seen", range(seeds)
    yield "held out", range(seeds, 2 * seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--earlier", type=int, nargs="*", default=EARLIER)
    parser.add_argument("--servers", nargs="*", default=list(SERVERS), choices=SERVERS, metavar="SERVER")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print(f"% of {args.seeds} runs judged worse (unknown)")
    head = "".join(f"{f'{slower:.0%} slower':>14}" for slower in SLOWER)
    print(f"{'server':<20}{'earlier':>8}{'seeds':>10}{'sigma':>7}{head}")
    for server in args.servers:
        for earlier in args.earlier:
            for part, seeds in parts(server, args.seeds):
                for sigma in SIGMAS:
                    found = [states(server, seeds, sigma, slower, earlier) for slower in SLOWER]
                    cells = "".join(f"{one['worse']:>8.1f} ({one['unknown']:>3.0f})" for one in found)
                    print(f"{server:<20}{earlier:>8}{part:>10}{sigma:>7.1%}{cells}", flush=True)
                    rows.append({"server": server, "earlier": earlier, "part": part, "sigma": sigma, "found": found})
    for server, step in RATCHETS.items():
        for sigma in SIGMAS:
            after = [seen_after(server, seed, sigma, step) for seed in range(20)]
            middle, last = statistics.median(after), max(after)
            print(f"ratchet of {step:.1%} a run, {server}, sigma {sigma:.1%}: run {middle:.0f}, at last {last:.0f}")
            rows.append({"server": server, "ratchet": step, "sigma": sigma, "median": middle, "last": last})
    if args.json:
        args.json.write_text(json.dumps({"seeds": args.seeds, "rows": rows}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
