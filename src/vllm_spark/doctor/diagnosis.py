"""Diagnosis of logs: the root cause of a failed start, and every finding of whole logs.

The last line of a failed start is nearly always "Engine core initialization failed. See root cause above". So known
causes are searched first (signatures.py, in order of priority), then the families of causes (families.py). The root
cause of an unknown failure is the innermost exception of the first traceback that is not such a wrapper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vllm_spark.core.run_command import typed
from vllm_spark.doctor.findings import Finding, Judgement, without_areas
from vllm_spark.doctor.log import Log
from vllm_spark.doctor.places import NOWHERE, Place
from vllm_spark.doctor.signatures import SEVERITIES, signatures, with_causes

_REPORTED = 5  # of the unknown errors


def root_cause(lines: Sequence[str], place: Place = NOWHERE) -> Finding | None:
    """Return the root cause of a failed start, or None if nothing in these lines failed: the first finding of `judge`,
    and in place of a symptom any exception.

    `lines` are those of one start (one systemd invocation), oldest first. Lines of an older failure would count.
    `place` is where they are from.
    """
    log = Log(place=place)
    if lines:
        log.read("\n".join(line.rstrip("\n") for line in lines))
    known = next((finding for finding in judge([log]).findings if finding.severity != "warning"), None)
    if known and known.severity != "symptom":
        return known
    found = log.exception() or known or log.unknown_cause()
    return found and _placed(found, {log.file: place})


def judge(logs: Iterable[Log]) -> Judgement:
    """Return the findings of several logs, root cause first, with one entry per log that shows it."""
    logs = list(logs)
    order = {signature.id: place for place, signature in enumerate(signatures())}
    # The order of the other causes is that of their log.
    findings = sorted(
        with_causes(without_areas([finding for log in logs for finding in log.findings()])),
        key=lambda finding: (SEVERITIES.index(finding.severity), order.get(finding.signature, len(order))),
    )
    unknown = [finding for log in logs for finding in log.unrecognised()]
    if (first := _first_exception(logs, findings)) in unknown:
        findings.insert(0, first)
        unknown.remove(first)
    places = {log.file: log.place for log in logs}
    return Judgement(*(tuple(_placed(each, places) for each in found) for found in (findings, unknown[:_REPORTED])))


def _placed(finding: Finding, places: Mapping[str, Place]) -> Finding:
    """Return a finding whose fix has the names of the place of its log, and the commands of this run."""
    return replace(finding, fix=typed(places[finding.file].fill(finding.fix)))


def _first_exception(logs: Sequence[Log], findings: Sequence[Finding]) -> Finding | None:
    """Return the exception that no signature knows and that is above every consequence and symptom of its log, if
    there are only such findings: it comes first."""
    fatal = [finding for finding in findings if finding.severity != "warning"]
    if not fatal or any(finding.severity == "cause" for finding in fatal):
        return None
    known = [signature.pattern for signature in signatures() if signature.id in {other.signature for other in fatal}]
    exceptions = [
        found for log in logs if (found := log.exception()) and not any(pattern.search(found.line) for pattern in known)
    ]
    return next(
        (
            found
            for found in exceptions
            if all(found.number < other.number for other in fatal if other.file == found.file)
        ),
        None,
    )
