"""The decorator `check`, which registers a check of a host, and the checks registered so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.core.text import one_line
from vllm_spark.core.types import Facts
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.doctor.findings import Finding

Severity = Literal["refusal", "warning"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One fault of a host: the values for the texts of its check, and the evidence as a line of a log shows it.

    Only warnings show `evidence`.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    evidence: str = ""


# A check that shares its message with another part of the package yields that part's refusals.
Observer = Callable[[HostContext], Iterator[Observation | Refusal]]


@dataclass(frozen=True, slots=True)
class Check:
    """One registered check. `what`, `expected` and `fix` are str.format templates over the values of an observation,
    and `host`. `module` is the file that defines it, `source` says where a warning's claim comes from."""

    id: str
    runbook: str
    severity: Severity
    needs: tuple[str, ...]
    what: str
    expected: str
    fix: str | Fix
    source: str
    module: str
    observe: Observer

    def refusals(self, context: HostContext) -> Iterator[Refusal]:
        """Yield a refusal per fault."""
        for observation in self.observe(context):
            if isinstance(observation, Refusal):
                yield observation
            else:
                yield self.refuse({"host": context.host, **observation.values})

    def refuse(self, values: Mapping[str, str]) -> Refusal:
        """Return the refusal with these values."""
        kind = register(self.id, runbook=self.runbook)
        return kind(
            what=self.what.format(**values), expected=self.expected.format(**values), fix=self.fix.format(**values)
        )

    def findings(self, context: HostContext) -> Iterator[Finding]:
        """Yield a finding of the doctor per fault."""
        for observation in self.observe(context):
            if isinstance(observation, Refusal):
                raise TypeError(f"check {self.id} is a warning and yields a refusal")
            # Names of processes, containers and models come from outside.
            values = {key: one_line(value) for key, value in observation.values.items()}
            values |= {"host": context.host}
            yield Finding(
                signature=self.id,
                cause=self.what.format(**values),
                line=one_line(observation.evidence),
                fix=str(self.fix.format(**values)),
                runbook=f"{self.runbook}.md",
                severity=self.severity,
                file=context.host,
            )


# Every check by its id. A file of deploy/checks registers its checks when it is imported.
REGISTRY: dict[str, Check] = {}


def check(  # noqa: PLR0913  one argument per field, all but the first by name
    id_: str,
    *,
    runbook: str,
    severity: Severity,
    needs: tuple[str, ...],
    what: str = "",
    expected: str = "",
    fix: str | Fix = "",
    source: str = "",
) -> Callable[[Observer], Check]:
    """Return a decorator that registers a check. `needs` names the facts (core.types.Facts) that the check reads;
    those that plugins/modules/spark_facts.py reads only on request are requested by it.

    Raises ValueError for an id that is registered already and for a fact that does not exist.
    """
    unknown = set(needs) - Facts.__annotations__.keys()
    if id_ in REGISTRY or unknown:
        raise ValueError(f"check {id_}: registered twice, or its facts {sorted(unknown)} do not exist")
    if severity == "refusal":
        register(id_, runbook=runbook)

    def decorate(observe: Observer) -> Check:
        REGISTRY[id_] = Check(
            id_, runbook, severity, needs, what, expected, fix, source, observe.__module__.rpartition(".")[2], observe
        )
        return REGISTRY[id_]

    return decorate
