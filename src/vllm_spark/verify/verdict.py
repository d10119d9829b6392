"""The verdict of a gate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.core.refusal import Fix, command_of, message

MARKS = {True: "✓", False: "✗", None: "—"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one condition of a gate. `ok` None: it could not be judged, and `observed` says why."""

    gate: str
    id: str
    ok: bool | None
    observed: str
    expected: str = ""
    fix: str = ""
    runbook: str = ""
    command: str = ""  # the one that `fix` begins with

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_json` wrote."""
        rest = {key: value for key, value in document.items() if key != "said"}
        return cls(observed=document["said"], **rest)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a stored report. Its key for `observed` is `said`, and its `fix` has the command."""
        document = asdict(self)
        document["said"] = document.pop("observed")
        del document["command"]
        return document

    def headline(self) -> str:
        """Return one line of a run: mark, gate, id, and the observed value. The final failure has the rest."""
        return f"{MARKS[self.ok]} {self.gate} {self.id}: {self.observed}"

    def line(self) -> str:
        """Return one line of a report: the headline, and after a failure the expected value and the fix."""
        return f"{MARKS[self.ok]} {self.gate} {self.id}: {self}"

    def __str__(self) -> str:
        if self.ok is not False:
            return self.observed
        return message(self.observed, self.expected, self.fix, runbook=self.runbook)


def failure(gate: str, id_: str, observed: str, expected: str, fix: str | Fix, *, runbook: str) -> Verdict:  # noqa: PLR0913
    """Return the verdict of a condition that does not hold. `runbook` is the stem of a file in docs/runbooks."""
    return Verdict(gate, id_, False, observed, expected, str(fix), runbook, command_of(fix))


def any_failed(verdicts: Sequence[Verdict]) -> bool:
    """Return True if a gate failed. A gate that could not be judged did not fail."""
    return any(verdict.ok is False for verdict in verdicts)
