"""Reports and their closing words."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import gates, report
from vllm_spark.verify.gates import Verdict

HOLDS = [Verdict("ready", "token", True, "one token"), Verdict("answer", "0", True, "Capital? Paris")]


def wanted(spec: Spec) -> dict[str, Any]:
    return gates.request(spec, launch.fingerprint(spec))


def test_a_report_is_written_and_read_back(resolve: Callable[..., Spec], tmp_path: Path) -> None:
    asked = wanted(resolve())
    closing = report.closing(asked, HOLDS, "10.0.0.1")
    document = report.verification(asked, HOLDS, {"host": "spark1", "closing": closing})
    assert not report.latest(tmp_path)
    path = report.write(tmp_path / "reports", "demo", document)
    assert [found["host"] for found in report.latest(path.parent)] == ["spark1"]
    read = json.loads(path.read_text())
    assert read["holds"]
    text = report.readable(read)
    assert text.startswith("spark1, model:\n✓ ready token: one token\n")
    assert "model answered: Capital? Paris" in text
    assert "http://10.0.0.1:8000/v1/chat/completions" in text


def test_the_latest_report_of_a_pair_is_two(resolve: Callable[..., Spec], tmp_path: Path) -> None:
    asked = wanted(resolve())
    runs = [("other", 0, "old", 1), ("spark1", 0, "new", 2), ("spark1", 0, "new", 3), ("spark2", 1, "new", 4)]
    for host, rank, fingerprint, at in runs:
        ranked = {**asked, "rank": rank, "launch": fingerprint}
        closing = report.closing(ranked, HOLDS, "10.0.0.1")
        assert bool(closing) == (rank == 0)
        document = report.verification(ranked, HOLDS, {"host": host, "closing": closing, "at": at})
        path = report.write(tmp_path, f"{host}-{at}", document)
        os.utime(path, (at, at))
    assert [(found["host"], found["at"]) for found in report.latest(tmp_path)] == [("spark1", 3), ("spark2", 4)]
    assert report.readable(report.latest(tmp_path)[1]).endswith("answer 0: Capital? Paris")


def test_the_closing_words_ask_for_a_key_only_where_there_is_one(resolve: Callable[..., Spec]) -> None:
    assert "ansible-playbook -i inv status.yml" in report.closing(wanted(resolve()), HOLDS, "h", "inv")
    assert "Authorization" not in report.closing(wanted(resolve()), HOLDS, "h")
    keyed = resolve(secrets={"HF_TOKEN": True, "VLLM_API_KEY": True})
    assert '-H "Authorization: Bearer $VLLM_API_KEY"' in report.closing(wanted(keyed), HOLDS, "h")


def test_a_miss_does_not_hold(resolve: Callable[..., Spec]) -> None:
    miss = Verdict("answer", "0", False, "asked, got ''", "Paris", "look.", "wrong-answers")
    document = report.verification(wanted(resolve()), [*HOLDS, miss], {})
    assert not document["holds"]
    assert str(miss) == "asked, got '' — expected: Paris. Fix: look. See docs/runbooks/wrong-answers.md"
