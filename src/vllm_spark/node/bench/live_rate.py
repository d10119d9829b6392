"""Count the tokens of streams while they run, for the live display. The figures come from the parsed traces."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vllm_spark.node.bench.stream import Recording

IDS = re.compile(rb'"token_ids":\s?\[([^\]]*)\]')


@dataclass(slots=True)
class LiveRate:
    """Tokens per second of all streams together since the last call."""

    clock: Callable[[], float] = time.perf_counter
    _events: dict[int, int] = field(default_factory=dict)  # number of counted events by stream
    _at: float = 0.0

    def read(self, recordings: Sequence[Recording]) -> float:
        """Return the rate since the last call; since the first request for the first call."""
        now = self.clock()
        before = self._at or min((recording.sent for recording in recordings), default=now)
        tokens = sum(self._new_tokens(number, recording) for number, recording in enumerate(recordings))
        self._at = now
        return tokens / (now - before) if now > before else 0.0

    def _new_tokens(self, number: int, recording: Recording) -> int:
        counted = self._events.get(number, 0)
        new = recording.reader.events[counted:]
        self._events[number] = counted + len(new)
        return sum(_tokens(event.data) for event in new)


def _tokens(data: bytes) -> int:
    """Return the number of token ids in an event; of a server without them the number of its deltas."""
    arrays: list[bytes] = IDS.findall(data)
    if arrays:
        return sum(array.count(b",") + 1 for array in arrays if array.strip())
    return data.count(b'"delta"')
