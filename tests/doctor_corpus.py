"""The corpus of failure logs and healthy logs, and what the doctor makes of each.

Used by tests/unit/doctor/test_doctor_corpus.py and tests/bench/doctor_corpus.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vllm_spark.core import strict_yaml
from vllm_spark.doctor import command
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import Finding, Judgement
from vllm_spark.doctor.log import Log

DATA = Path(__file__).parent / "data"
FAILED = DATA / "doctor-logs"
HEALTHY = FAILED / "healthy"
OWN = FAILED / "own"
ENGINE_LOGS = DATA / "engine-logs"
STARTS = (
    *("26b-a4b-bf16", "26b-a4b-fp8", "26b-a4b-nvfp4-marlin", "26b-a4b-nvfp4-marlin.serve", "31b-bf16", "31b-fp8"),
    *("31b-nvfp4-marlin", "ray-worker"),
)
VERDICTS = ("right cause", "right line", "wrong cause", "all clear")


@dataclass(frozen=True)
class Case:
    """A log of a failure. `expected`: ids of which one must come first; none if the log does not hold its cause."""

    name: str
    source: str
    cause: str
    expected: tuple[str, ...]
    line: str
    batch: int
    file: Path

    @property
    def own(self) -> bool:
        """Return True for a whole log of an own engine."""
        return self.file.parent == OWN

    @property
    def held_back(self) -> bool:
        """Return True if the log was not read while the rules were written. The comment in index.yml explains it."""
        return self.batch > 1 or hashlib.sha256(self.name.encode()).digest()[0] % 3 == 0

    def verdict(self) -> tuple[str, Finding | None]:
        """Return the verdict on the doctor's first finding, and that finding."""
        logs, judgement = _judged(self.file)
        fatal = [finding for finding in judgement.findings if finding.severity != "warning"]
        warned = [finding for finding in judgement.findings if finding.signature in self.expected]
        first = next(iter([*fatal, *judgement.unrecognised, *warned]), None)
        if first is None:
            unknown = "unknown" in self.expected and command.unknown(judgement, logs)
            return "right cause" if unknown else "all clear", None
        if first.signature in self.expected:
            return "right cause", first
        if not self.line or self.line in first.line:
            # A log without its cause is read correctly if the doctor says that it ends in a failure.
            unrecognised = first.signature == "unrecognised"
            verdict = "right cause" if not self.expected else "right line"
            return verdict if unrecognised else "wrong cause", first
        return "wrong cause", first


@cache
def _judged(file: Path) -> tuple[list[Log], Judgement]:
    logs = [command.read(str(file))]
    return logs, judge(logs)


def cases() -> Iterator[Case]:
    """Yield the failure logs of both indexes."""
    for folder, suffix in ((FAILED, ".log"), (OWN, ".log.gz")):
        index: dict[str, dict[str, Any]] = strict_yaml.load_own((folder / "index.yml").read_text(encoding="utf-8"))
        for name, fields in index.items():
            yield Case(name=name, file=folder / (name + suffix), **{**fields, "expected": tuple(fields["expected"])})


def healthy() -> list[Path]:
    """Return the healthy logs: whole runs of real engines, and excerpts of public threads."""
    own, threads = (OWN / "healthy").glob("*.log.gz"), HEALTHY.glob("*.log")
    return sorted([*own, *threads, *(ENGINE_LOGS / f"{name}.log" for name in STARTS)])
