"""The power of `bench verdict`, and what it forgets, on histories of simulated runs of real servers.

Each kind is a history (tests/fakes/bench_history.py) and a last run: as before, slower, after one bad run, after a
lasting gain, with rare slow cells, with heat. It prints the share of the seeds whose last run is judged worse, and the
run at which a ratchet is seen. It cannot fail.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes.bench_history import SLOWNESS, Server, history
from vllm_spark.bench import compare, verdict
from vllm_spark.bench.evidence import Evidence
from vllm_spark.node.bench.records import CellRecord

SERVERS = {
    "one stream": Server("31b-fp8.standard"),
    "streams": Server("26b-a4b-fp8.streams", several=True),
    "pair": Server("31b-fp8-tp2.standard"),
}
RATCHETS = {"one stream": 0.018, "streams": 0.035, "pair": 0.08}
GAIN = 1 / 1.20
RARE, RARELY = 0.02, 1.15
# Changes the runs of a seed.
Change = Callable[[Sequence[Evidence], int], list[Evidence]]


def worse(runs: Sequence[Evidence]) -> bool:
    return verdict.compared_state(compare.compare(runs[:-1], runs[-1])) == "worse"


def rare_slow_cells(runs: Sequence[Evidence], seed: int) -> list[Evidence]:
    """Slow down some cells of any run: 2 % of the cells, and a twentieth of the runs as a whole."""
    source = random.Random(f"rare {seed}")  # noqa: S311  noise of a test

    def slowed(run: Evidence) -> Evidence:
        part = 1.0 if source.random() < 0.05 else RARE
        cells = {name: scaled(cell) if source.random() < part else cell for name, cell in run.cells.items()}
        return replace(run, cells=cells)

    return [*map(slowed, runs[:-1]), runs[-1]]


def scaled(cell: CellRecord) -> CellRecord:
    """Return a cell that is slower by RARELY."""
    figures = {}
    for name, one in cell["figures"].items():
        factor = RARELY ** SLOWNESS[name]
        figures[name] = {**one, "median": one["median"] * factor, "values": [value * factor for value in one["values"]]}
    return {**cell, "figures": figures}  # type: ignore[typeddict-item]  # one is a Figure with other values


def kinds() -> Iterator[tuple[str, float, list[float], Change | None]]:
    """Yield each kind of history: its name, sigma, the slowness of its runs, and what else happens to them."""
    for earlier in (5, 10, 15):
        for bad in (1.10, 1.30):
            yield (
                f"as before, after {earlier}, the last {bad - 1:.0%} slower",
                0.003,
                [1.0] * earlier + [bad, 1.0],
                None,
            )
    for sigma in (0.003, 0.01):
        gain = [1.0] * 6 + [GAIN] * 8
        yield "as before, after 6 and 8 faster by 20 %", sigma, [*gain, GAIN], None
        yield "15 % slower, after 6 and 8 faster by 20 %", sigma, [*gain, GAIN * 1.15], None
    for earlier in (1, 2, 5, 8, 15, 29):
        for sigma in (0.005, 0.01, 0.02):
            yield f"as before, after {earlier}", sigma, [1.0] * (earlier + 1), None
    for earlier in (1, 5, 8, 15):
        for slower in (1.05, 1.10):
            yield f"{slower - 1:.0%} slower, after {earlier}", 0.01, [1.0] * earlier + [slower], None
    for earlier in (1, 2, 5, 8, 15):
        yield f"as before, rare slow cells, after {earlier}", 0.005, [1.0] * (earlier + 1), rare_slow_cells
    source = random.Random("heat")  # noqa: S311  noise of a test
    yield "as before, heat of 0 to 2 %, after 15", 0.003, [1 + source.uniform(0, 0.02) for _ in range(16)], None


def share(template: Evidence, seeds: range, sigma: float, slowness: list[float], change: Change | None) -> float:
    """Return the share of the seeds whose last run is worse, in percent."""
    found = 0
    for seed in seeds:
        runs = history(template, seed, sigma, slowness)
        found += worse(change(runs, seed) if change else runs)
    return 100 * found / len(seeds)


def ratchet(template: Evidence, sigma: float, step: float) -> list[float]:
    """Return the runs after which a ratchet is seen, of 20 seeds, in order; infinite if it is not."""
    found = []
    for seed in range(20):
        runs = history(template, seed, sigma, [(1 + step) ** number for number in range(20)])
        found.append(next((number for number in range(2, 21) if worse(runs[:number])), float("inf")))
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed; those from 200 on were not seen")
    args = parser.parse_args()
    templates = {name: server.template() for name, server in SERVERS.items()}
    seeds = range(args.first, args.first + args.seeds)
    print(f"% of {args.seeds} seeds judged worse: {', '.join(SERVERS)}")
    for name, sigma, slowness, change in kinds():
        found = [share(template, seeds, sigma, slowness, change) for template in templates.values()]
        print(f"{name:<50}{sigma:>6.1%}" + "".join(f"{one:>7.1f}" for one in found), flush=True)
    for name, step in RATCHETS.items():
        for sigma in (0.0, 0.005):
            seen = ratchet(templates[name], sigma, step)
            print(f"{step:.1%} slower each run, {name}, sigma {sigma:.1%}: run {seen[10]:.0f}, at last {seen[-1]:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
