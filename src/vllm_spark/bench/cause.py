"""Causes of a slower cell: a table of rules, each a pure function of the old and the new cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from vllm_spark.core.run_command import typed
from vllm_spark.node.bench.leading import measures_prompt
from vllm_spark.node.bench.records import CellRecord, Sample

# A ratio inside of 1 ± EQUAL counts as equal: the largest noise of one stream.
EQUAL = 0.04
OF_PROMPT = ("prefill", "first_token")
# Acceptance is a property of the text, and the corpora are seeded: it hardly varies.
LOWER_ACCEPTANCE = 0.92
# A healthy run has 2500 MHz. docs/runbooks/gpu-clocks.md has what owners measured with a cap of 2200 MHz.
LOWER_CLOCK = 0.95
GROWN_SWAP_GIB = 0.1


@dataclass(frozen=True, slots=True)
class _Pair:
    """The old and the new cell."""

    old: CellRecord
    new: CellRecord

    def ratio(self, metric: str) -> float:
        """Return new median / old median; 1 if one is missing, and for a prompt that the cell does not judge."""
        before, after = (cell["figures"].get(metric) for cell in (self.old, self.new))
        judged = metric not in OF_PROMPT or measures_prompt(self.new["cell"])
        return float(after["median"] / before["median"]) if judged and before and after and before["median"] else 1.0

    def slower_step(self) -> bool:
        return self.ratio("step") > 1 + EQUAL

    def slower_prefill(self) -> bool:
        return self.ratio("prefill") < 1 - EQUAL

    def equal(self, metric: str) -> bool:
        return abs(self.ratio(metric) - 1) <= EQUAL

    def hosts(self, test: Callable[[Sequence[Any], Sequence[Any]], bool]) -> str:
        """Return the hosts of the new cell whose samples pass a test. One that the old cell does not have is tested
        against those that it has: the ranks of a deployment are alike."""
        old, everywhere = self.old["samples"], [one for samples in self.old["samples"].values() for one in samples]
        return ", ".join(
            name for name, samples in self.new["samples"].items() if test(old.get(name) or everywhere, samples)
        )


def _swaps(old: Sequence[Sample], new: Sequence[Sample]) -> bool:
    before, values = ([one["swap_gib"] for one in samples if "swap_gib" in one] for samples in (old, new))
    return bool(values) and max(values) - min([*values, *([max(before)] if before else [])]) > GROWN_SWAP_GIB


def _thermal(samples: Sequence[Sample]) -> bool:
    return any("thermal" in sample.get("throttle", "") for sample in samples)


def _throttled(old: Sequence[Sample], new: Sequence[Sample]) -> bool:
    return _thermal(new) and not _thermal(old)


def _clocked_down(old: Sequence[Sample], new: Sequence[Sample]) -> bool:
    before, after = ([one["sm_mhz"] for one in samples if "sm_mhz" in one] for samples in (old, new))
    return bool(before and after) and median(after) < LOWER_CLOCK * median(before)


# By id: what is found, its runbook, and its test, which returns the hosts or whether it holds. The first one that holds
# names the cause: what the hosts show counts before what the times show.
RULES: Mapping[str, tuple[str, str, Callable[[_Pair], str | bool]]] = {
    "swap": ("the Spark swaps: swap in use grew", "swap", lambda pair: pair.hosts(_swaps)),
    "thermal": ("the GPU throttles because of its temperature", "gpu-clocks", lambda pair: pair.hosts(_throttled)),
    "clocks": (
        "a lower clock of the GPU: step and prefill are slower together",
        "gpu-clocks",
        lambda pair: pair.hosts(_clocked_down) if pair.slower_step() or pair.slower_prefill() else "",
    ),
    "drafter": (
        "the drafter: fewer tokens are accepted, and a step takes as long",
        "drafter",
        lambda pair: pair.ratio("acceptance") < LOWER_ACCEPTANCE and pair.equal("step"),
    ),
    "eager": (
        "the step is slower: eager mode, no CUDA graphs, or other kernels",
        "slow",
        lambda pair: pair.slower_step() and pair.equal("prefill"),
    ),
    "prefill": (
        "the prompt alone is slower: smaller chunks, or other kernels",
        "slow",
        lambda pair: (pair.slower_prefill() or pair.ratio("first_token") > 1 + EQUAL) and pair.equal("step"),
    ),
    "engine": (
        "step and prefill are slower at the same clocks: other kernels or other load",
        "slow",
        lambda pair: pair.slower_step() and pair.slower_prefill(),
    ),
}


def sentence(old: CellRecord, new: CellRecord) -> str:
    """Return the cause of the first rule that holds, with its hosts and its runbook."""
    pair = _Pair(old, new)
    for what, runbook, test in RULES.values():
        if found := test(pair):
            hosts = f"{found}: " if isinstance(found, str) else ""
            return typed(f"{hosts}{what} (docs/runbooks/{runbook}.md)")
    return "cause unknown"
