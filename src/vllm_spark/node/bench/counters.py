"""Read the engine's own counters: GET /metrics in the Prometheus text format. Their names are in `observation`."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_spark.node.bench.observation import ACCEPTED_BY_POSITION, ACCEPTED_TOKENS, DRAFTED_TOKENS, DRAFTS

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)(?: \d+)?$")
_POSITION = re.compile(r'position="(\d+)"')


def read(text: str) -> dict[str, float]:
    """Return name -> value. Values that differ only in labels are added up, but a position becomes part of the name, as
    in `vllm:spec_decode_num_accepted_tokens_per_pos_total 0`."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            continue
        name, labels, value = match.groups()
        position = _POSITION.search(labels or "")
        key = f"{name} {position[1]}" if position else name
        with contextlib.suppress(ValueError):  # a value that is no number counts nothing
            values[key] = values.get(key, 0.0) + float(value)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return how far each counter moved. One that was not there before had not counted anything yet."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


@dataclass(frozen=True, slots=True)
class Speculation:
    """What the drafter did in a run. A draft is one step of one request."""

    drafts: float
    drafted: float
    accepted: float
    by_position: tuple[float, ...]  # share of the drafts whose token at that position was accepted

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gets from one step: its own and the accepted ones."""
        return 1 + self.accepted / self.drafts

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens."""
        return self.accepted / self.drafted


def speculation(moved: Mapping[str, float]) -> Speculation | None:
    """Return the drafter's work from the counters' differences; None if it did not draft."""
    drafts, drafted = moved.get(DRAFTS, 0.0), moved.get(DRAFTED_TOKENS, 0.0)
    if drafts <= 0 or drafted <= 0:
        return None
    by_position: list[float] = []
    while (name := f"{ACCEPTED_BY_POSITION} {len(by_position)}") in moved:
        by_position.append(moved[name] / drafts)
    return Speculation(drafts, drafted, moved.get(ACCEPTED_TOKENS, 0.0), tuple(by_position))
