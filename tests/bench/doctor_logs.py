"""What the doctor makes of failure logs and of healthy logs: one line per log, then both figures.

The logs seen while the rules were written and the logs held back are counted apart. It has no limits and cannot fail;
the floor is in tests/unit/doctor/test_doctor_corpus.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import doctor_corpus as corpus
from vllm_spark.doctor import command
from vllm_spark.doctor.diagnosis import judge


def main() -> int:
    counts: dict[str, Counter[str]] = {"seen": Counter(), "held back": Counter()}
    for case in corpus.cases():
        verdict, finding = case.verdict()
        group = "held back" if case.held_back else "seen"
        counts[group][verdict] += 1
        print(f"{group:<10}{verdict:<12} {case.name}: {f'{finding.signature}: {finding.cause}' if finding else '-'}")
    for group, verdicts in counts.items():
        figures = ", ".join(f"{verdict} {verdicts[verdict]}" for verdict in corpus.VERDICTS)
        print(f"{group}: {verdicts.total()} failed logs: {figures}")
    findings = {path.name: judge([command.read(str(path))]) for path in corpus.healthy()}
    for name, judgement in findings.items():
        for finding in (*judgement.findings, *judgement.unrecognised):
            print(f"healthy   {finding.severity} {finding.signature} in {name}: {finding.line}")
    warnings = sum(finding.severity == "warning" for judged in findings.values() for finding in judged.findings)
    causes = sum(judged.failed for judged in findings.values())
    print(f"healthy: {len(findings)} logs: {causes} with a false cause, {warnings} false warnings")
    return 0


if __name__ == "__main__":
    sys.exit(main())
