"""What the plan says instead of a plan: one message per fault, with its fix and its runbook."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


def message(what: str, expected: str, fix: str, *, runbook: str) -> str:
    """The house's form of every message to an operator. `what` carries the values seen, `runbook` is a file's stem."""
    return f"{what} — expected {expected}. Fix: {fix} See docs/runbooks/{runbook}.md"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason not to go on. `what` carries the values seen."""

    id: str
    what: str
    expected: str
    fix: str
    runbook: str

    def __str__(self) -> str:
        return message(self.what, self.expected, self.fix, runbook=self.runbook)


class RefusedError(Exception):
    """Raised where a caller cannot go on without the refused thing. Holds every refusal found, not the first."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("\n".join(str(refusal) for refusal in self.refusals))
