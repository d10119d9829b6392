"""Causes of a slower cell: a table of rules. Each has pure functions of the old and the new cell."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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


# What the samples of a host in the old and the new cell show.
HostTest = Callable[[Sequence[Sample], Sequence[Sample]], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause: its sentence, its runbook, the test of the times of both cells, and that of each host's samples."""

    id: str
    what: str
    runbook: str
    times: Callable[[CellRecord, CellRecord], bool] | None = None
    host: HostTest | None = None

    def sentence(self, old: CellRecord, new: CellRecord) -> str:
        """Return the cause with the hosts that show it, or an empty text if the rule does not hold."""
        if self.times and not self.times(old, new):
            return ""
        hosts = _hosts(old, new, self.host) if self.host else []
        if self.host and not hosts:
            return ""
        return f"{', '.join(hosts)}: {self.what}" if hosts else self.what


def _hosts(old: CellRecord, new: CellRecord, test: HostTest) -> list[str]:
    """Return the hosts of the new cell whose samples pass a test. A host that the old cell does not have is tested
    against the hosts that it has: the ranks of a deployment are alike."""
    everywhere = [sample for samples in old["samples"].values() for sample in samples]
    return [host for host, samples in new["samples"].items() if test(old["samples"].get(host) or everywhere, samples)]


def ratio(old: CellRecord, new: CellRecord, metric: str) -> float | None:
    """Return new median / old median. None if one is missing or zero, and for a prompt that the cell does not judge."""
    if metric in OF_PROMPT and not measures_prompt(new["cell"]):
        return None
    before, after = (cell["figures"].get(metric) for cell in (old, new))
    return after["median"] / before["median"] if before and after and before["median"] else None


def _values(samples: Iterable[Sample], name: str) -> list[float]:
    rows: list[Mapping[str, Any]] = [dict(sample) for sample in samples]
    return [row[name] for row in rows if name in row]


def _swap(old: Sequence[Sample], new: Sequence[Sample]) -> bool:
    values, before = _values(new, "swap_gib"), _values(old, "swap_gib")
    grown = max(values, default=0.0) - min(values, default=0.0)
    return grown > GROWN_SWAP_GIB or bool(before and values and max(values) - max(before) > GROWN_SWAP_GIB)


def _throttled(old: Sequence[Sample], new: Sequence[Sample]) -> bool:
    return _thermal(new) and not _thermal(old)


def _thermal(samples: Sequence[Sample]) -> bool:
    return any("thermal" in sample.get("throttle", "") for sample in samples)


def _clock(old: Sequence[Sample], new: Sequence[Sample]) -> bool:
    before, after = _values(old, "sm_mhz"), _values(new, "sm_mhz")
    return bool(before and after) and statistics.median(after) < LOWER_CLOCK * statistics.median(before)


def _slower(old: CellRecord, new: CellRecord) -> bool:
    return _slower_step(old, new) or _slower_prefill(old, new)


def _drafter(old: CellRecord, new: CellRecord) -> bool:
    acceptance, step = ratio(old, new, "acceptance"), ratio(old, new, "step")
    return acceptance is not None and acceptance < LOWER_ACCEPTANCE and (step is None or abs(step - 1) <= EQUAL)


def _step_alone(old: CellRecord, new: CellRecord) -> bool:
    prefill = ratio(old, new, "prefill")
    return _slower_step(old, new) and (prefill is None or abs(prefill - 1) <= EQUAL)


def _both(old: CellRecord, new: CellRecord) -> bool:
    return _slower_step(old, new) and _slower_prefill(old, new)


def _slower_step(old: CellRecord, new: CellRecord) -> bool:
    step = ratio(old, new, "step")
    return step is not None and step > 1 + EQUAL


def _slower_prefill(old: CellRecord, new: CellRecord) -> bool:
    prefill = ratio(old, new, "prefill")
    return prefill is not None and prefill < 1 - EQUAL


def _prefill_alone(old: CellRecord, new: CellRecord) -> bool:
    step = ratio(old, new, "step")
    first = ratio(old, new, "first_token")
    slower = _slower_prefill(old, new) or (first is not None and first > 1 + EQUAL)
    return slower and (step is None or abs(step - 1) <= EQUAL)


# The first rule that holds names the cause: what the host shows counts before what the times show.
RULES = (
    Rule("swap", "the Spark swaps: swap in use grew", "swap", host=_swap),
    Rule("thermal", "the GPU throttles because of its temperature", "gpu-clocks", host=_throttled),
    Rule("clocks", "a lower clock of the GPU: step and prefill are slower together", "gpu-clocks", _slower, _clock),
    Rule("drafter", "the drafter: fewer tokens are accepted, and a step takes as long", "drafter", _drafter),
    Rule("eager", "the step is slower: eager mode, no CUDA graphs, or other kernels", "slow", _step_alone),
    Rule("prefill", "the prompt alone is slower: smaller chunks, or other kernels", "slow", _prefill_alone),
    Rule("engine", "step and prefill are slower at the same clocks: other kernels or other load", "slow", _both),
)


def sentence(old: CellRecord, new: CellRecord) -> str:
    """Return the cause of the first rule that holds, with its hosts and its runbook."""
    causes = ((rule, text) for rule in RULES if (text := rule.sentence(old, new)))
    rule, text = next(causes, (None, "cause unknown"))
    return typed(f"{text} (docs/runbooks/{rule.runbook}.md)") if rule else text
