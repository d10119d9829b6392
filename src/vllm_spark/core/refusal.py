"""Refusals: the reasons that stop a verb. Each kind is registered once, with the runbook that explains it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm_spark.core.run_command import typed


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix that is a command: it runs as printed. `remark` is a sentence about it.

    A fix that is a text alone has its commands in backticks.
    """

    command: str
    remark: str = ""

    def __str__(self) -> str:
        return f"{self.command}. {self.remark}".rstrip()

    def format(self, **values: str) -> Fix:
        """Return the fix with values in its templates."""
        return Fix(self.command.format(**values), self.remark.format(**values))


def message(what: str, expected: str, fix: str | Fix, *, runbook: str) -> str:
    """Return the text of a message to an operator.

    `what` carries the values seen. `fix` is a command or a variable. `runbook` is the stem of a file in docs/runbooks.
    """
    return typed(f"{what} — expected: {expected}. Fix: {fix} See docs/runbooks/{runbook}.md")


def command_of(fix: str | Fix) -> str:
    """Return the command that a fix begins with, empty for a sentence."""
    return fix.command if isinstance(fix, Fix) else ""


def fix_to_json(fix: str, command: str) -> dict[str, str | None]:
    """Return the text of a fix as its two fields. `command` is what `command_of` returned."""
    remark = fix.removeprefix(f"{command}.").strip() if command else fix
    return {"command": typed(command) or None, "remark": typed(remark) or None}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason that stops a verb. `what` carries the values seen. `command` is the one that `fix` begins with."""

    id: str
    what: str
    expected: str
    fix: str
    runbook: str
    command: str = ""

    def __str__(self) -> str:
        return message(self.what, self.expected, self.fix, runbook=self.runbook)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a document for programs."""
        fix = fix_to_json(self.fix, self.command)
        return {"id": self.id, "what": typed(self.what), "expected": self.expected, "fix": fix, "runbook": self.runbook}


class RefusedError(Exception):
    """Raised if a verb must not continue. Holds every refusal, not only the first."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        super().__init__("\n".join(str(refusal) for refusal in self.refusals))


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """An id and its runbook. A call returns a refusal of this kind."""

    id: str
    runbook: str

    def __call__(self, *, what: str, expected: str, fix: str | Fix) -> Refusal:
        return Refusal(self.id, what, expected, str(fix), self.runbook, command_of(fix))

    def error(self, *, what: str, expected: str, fix: str | Fix) -> RefusedError:
        """Return the exception with one refusal of this kind."""
        return RefusedError([self(what=what, expected=expected, fix=fix)])


# Every kind by its id. A module registers its kinds when it is imported.
REGISTRY: dict[str, RefusalKind] = {}


def register(id_: str, *, runbook: str) -> RefusalKind:
    """Register a kind of refusal and return it. Raises ValueError if the id has another runbook already."""
    kind = REGISTRY.setdefault(id_, RefusalKind(id_, runbook))
    if kind.runbook != runbook:
        raise ValueError(f"refusal {id_} has the runbooks {kind.runbook} and {runbook}")
    return kind
