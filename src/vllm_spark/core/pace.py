"""When a line about progress is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_S = 5.0


@dataclass(slots=True)
class Pace:
    """The first line of a phase is due after `begin_s` seconds, and each further one after twice as long as the one
    before it, at most `most_s`."""

    begin_s: float = FIRST_S
    most_s: float = 60.0
    _phase: str | None = field(default=None, init=False)
    _wait_s: float = field(default=0.0, init=False)
    _next_at: float = field(default=0.0, init=False)

    def due(self, phase: str, now: float) -> bool:
        """Return whether a line is due. `now` is a monotonic clock in seconds."""
        if phase != self._phase:
            self._phase, self._wait_s, self._next_at = phase, FIRST_S, now + self.begin_s
        if now < self._next_at:
            return False
        self._next_at, self._wait_s = now + self._wait_s, min(2 * self._wait_s, self.most_s)
        return True
