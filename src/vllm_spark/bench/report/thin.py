"""Thinning of samples: minimum, mean and maximum per bucket of time, so that no peak is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise


@dataclass(frozen=True, slots=True)
class Bucket:
    """Samples of a part of the time: mean time in seconds, and the smallest, mean and largest value."""

    t: float
    low: float
    mean: float
    high: float


def thin(samples: Sequence[tuple[float, float]], buckets: int) -> list[Bucket]:
    """Return at most `buckets` buckets of (time, value) pairs in order of time. Few samples stay as they are."""
    ordered = sorted(samples)
    if len(ordered) <= buckets:
        return [Bucket(t, value, value, value) for t, value in ordered]
    first, span = ordered[0][0], (ordered[-1][0] - ordered[0][0]) or 1.0

    def index(sample: tuple[float, float]) -> int:
        return min(buckets - 1, int((sample[0] - first) / span * buckets))

    return [_bucket([*group]) for _, group in groupby(ordered, key=index)]


def _bucket(samples: Sequence[tuple[float, float]]) -> Bucket:
    values = [value for _, value in samples]
    return Bucket(
        sum(t for t, _ in samples) / len(samples),
        min(values),
        sum(values) / len(values),
        max(values),
    )


def unbroken(buckets: Sequence[Bucket]) -> Iterator[list[Bucket]]:
    """Yield the parts between gaps. A gap is longer than 30 s and longer than six usual distances of two buckets."""
    distances = sorted(after.t - before.t for before, after in pairwise(buckets))
    usual = distances[len(distances) // 2] if distances else 0.0
    part: list[Bucket] = []
    for bucket in buckets:
        if part and bucket.t - part[-1].t > max(30.0, 6 * usual):
            yield part
            part = []
        part.append(bucket)
    if part:
        yield part
