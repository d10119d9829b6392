"""Name why a cell became slower, from the figures and samples of both runs. Each rule is one registered function."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Literal

from vllm_spark.node.bench.records import CellRecord

# Relative changes below these explain nothing.
CLOCK_CHANGE = 0.03
STEP_CHANGE = 0.03
ACCEPTANCE_CHANGE = 0.05
SWAP_GIB = 0.25
MEMORY_CHANGE_GIB = 2.0

Rule = Callable[[CellRecord, CellRecord], Iterator[str]]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Register a rule. Its order in this file is the order of the causes."""
    RULES.append(function)
    return function


def causes(baseline: CellRecord, other: CellRecord) -> list[str]:
    """Return the causes that the records show, the most certain first. Empty: they show none."""
    return [text for each in RULES for text in each(baseline, other)]


@rule
def faults(_: CellRecord, other: CellRecord) -> Iterator[str]:
    yield from (f"{fault['id']}: {fault['what']}" for fault in other["faults"])


@rule
def swap(baseline: CellRecord, other: CellRecord) -> Iterator[str]:
    before, after = _highest(baseline, "swap_gib"), _highest(other, "swap_gib")
    if before is not None and after is not None and after - before > SWAP_GIB:
        yield f"swap in use rose from {before:.1f} to {after:.1f} GiB"


@rule
def clock(baseline: CellRecord, other: CellRecord) -> Iterator[str]:
    before, after = _median(baseline, "sm_mhz"), _median(other, "sm_mhz")
    if before and after and after / before - 1 < -CLOCK_CHANGE:
        yield f"the GPU's clock fell from {before:.0f} to {after:.0f} MHz"


@rule
def drafter(baseline: CellRecord, other: CellRecord) -> Iterator[str]:
    before, after = _figure(baseline, "acceptance"), _figure(other, "acceptance")
    if before and not after:
        yield "the drafter does not draft any more"
    elif before and after and after / before - 1 < -ACCEPTANCE_CHANGE:
        same = " while a step takes as long as before" if _step_is_same(baseline, other) else ""
        yield f"the drafter's acceptance fell from {before:.0%} to {after:.0%}{same}: another drafter, or other texts"


@rule
def mode(baseline: CellRecord, other: CellRecord) -> Iterator[str]:
    before, after = _figure(baseline, "step"), _figure(other, "step")
    clocks = _median(baseline, "sm_mhz"), _median(other, "sm_mhz")
    same_clock = None not in clocks and abs(clocks[1] / clocks[0] - 1) <= CLOCK_CHANGE  # type: ignore[operator]
    prefill = _figure(baseline, "prefill"), _figure(other, "prefill")
    same_prefill = None not in prefill and abs(prefill[1] / prefill[0] - 1) <= STEP_CHANGE  # type: ignore[operator]
    if before and after and after / before - 1 > STEP_CHANGE and same_clock and same_prefill:
        yield (
            f"a step takes {after:.1f} instead of {before:.1f} ms with the same clock and prefill: kernels are "
            "launched one by one (enforce-eager), or other kernels run"
        )


@rule
def memory(baseline: CellRecord, other: CellRecord) -> Iterator[str]:
    before, after = _highest(baseline, "memory_gib"), _highest(other, "memory_gib")
    if before is not None and after is not None and after - before > MEMORY_CHANGE_GIB:
        yield f"memory in use rose from {before:.1f} to {after:.1f} GiB"


def _step_is_same(baseline: CellRecord, other: CellRecord) -> bool:
    before, after = _figure(baseline, "step"), _figure(other, "step")
    return bool(before and after and abs(after / before - 1) <= STEP_CHANGE)


def _figure(cell: CellRecord, metric: str) -> float | None:
    figure = cell["figures"].get(metric)
    return float(figure["median"]) if figure else None


def _values(cell: CellRecord, name: Literal["swap_gib", "sm_mhz", "memory_gib"]) -> list[float]:
    return [sample[name] for samples in cell["samples"].values() for sample in samples if name in sample]


def _highest(cell: CellRecord, name: Literal["swap_gib", "memory_gib"]) -> float | None:
    return max(_values(cell, name), default=None)


def _median(cell: CellRecord, name: Literal["sm_mhz"]) -> float | None:
    values = _values(cell, name)
    return statistics.median(values) if values else None
