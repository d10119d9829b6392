"""Order of the causes in one log: which exception of a chain names the cause, and which cause of several comes first.

An exception that ended a process comes before an error line after which the start went on. A CUDA fault is reported
at a later call, often as the failure of a library or of another process, so that the fault itself names the cause.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from vllm_spark.doctor import failure_lines, families
from vllm_spark.doctor.findings import AREA, UNRECOGNISED, Finding
from vllm_spark.doctor.tracebacks import CUDA_FAULT, WRAPPER, Chain, Raised

# What libraries say after a CUDA fault of an earlier kernel: their own calls cannot work any more.
_AFTER_FAULT = re.compile(
    r"CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|NOT_INITIALIZED)"
    r"|[Uu]nhandled ?[Cc]uda ?[Ee]rror"
)


# What the dynamic linker says of a library: every later fault of that library follows from it.
_LINKER = re.compile(r"undefined symbol: |cannot open shared object file")


def named(chain: Chain, evidence: families.Evidence) -> tuple[Raised, families.Diagnosis | None]:
    """Return the exception of a chain that names its cause, and its diagnosis: that of the most specific family, the
    innermost one of several; then the root. `evidence` is what else the log has."""
    own = [raised for raised in chain.raised if not WRAPPER.search(raised.line)]
    if any(CUDA_FAULT.search(raised.line) for raised in own):
        own.sort(key=lambda raised: bool(_AFTER_FAULT.search(raised.line)))
    known = [(raised, found) for raised in own if (found := families.classify(raised.line, raised.frames, evidence))]
    order = [family.id for family in families.families() if not family.id.startswith(AREA)]
    place = {family: number for number, family in enumerate(order)}
    first = min(known, key=lambda pair: place.get(pair[1].family.id, len(place)), default=None)
    return first or (chain.root or chain.raised[0], None)


def ordered(raised: Iterable[Finding], logged: Iterable[Finding], outlived: Collection[int]) -> list[Finding]:
    """Return the known causes of exceptions and of error lines, the first cause first, those with the same cause as
    one. `outlived`: the lines of exceptions after which their process went on."""
    found = [(_place(finding, soft=finding.number in outlived), finding) for finding in raised]
    found += [(_place(finding, soft=not _native(finding.line)), finding) for finding in logged]
    if not any(CUDA_FAULT.search(finding.line) for _, finding in found):
        found = [((soft, False, number), finding) for (soft, _, number), finding in found]
    merged: dict[tuple[str, str], Finding] = {}
    for _, finding in sorted(found, key=lambda pair: pair[0]):
        if finding.signature == UNRECOGNISED:
            continue
        key = (finding.signature, finding.cause)
        earlier = merged.get(key)
        merged[key] = replace(earlier, count=earlier.count + finding.count) if earlier else finding
    return list(merged.values())


def _place(finding: Finding, *, soft: bool) -> tuple[bool, bool, int]:
    """Return the sort key of a finding."""
    return soft, bool(_AFTER_FAULT.search(finding.line)), finding.number


def _native(line: str) -> bool:
    """Return True for a line of native code, NCCL or the linker, which the engine's own reports follow."""
    return bool(failure_lines.NATIVE.match(line) or _LINKER.search(line) or failure_lines.NCCL_WARNING in line)
