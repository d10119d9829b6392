"""Reports and their closing lines."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

from vllm_spark.core import run_command
from vllm_spark.core.run_command import ThisRun
from vllm_spark.deploy import launch
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import report, runner
from vllm_spark.verify.gate_request import GateRequest
from vllm_spark.verify.verdict import Verdict

PASSED = [Verdict("ready", "token", True, "one token"), Verdict("answer", "0", True, "Capital? Paris")]


def request_of(spec: Spec) -> GateRequest:
    return runner.gate_request(spec, launch.fingerprint(spec))


def test_a_report_is_written_and_read_back(resolve: Callable[..., Spec], tmp_path: Path) -> None:
    request = request_of(resolve())
    closing = report.closing(request, PASSED, "10.0.0.1")
    document = report.verification(request, PASSED, {"host": "spark1", "closing": closing})
    assert not report.latest(tmp_path)
    path = report.write(tmp_path / "reports", "demo", document)
    assert [each["host"] for each in report.latest(path.parent)] == ["spark1"]
    read = json.loads(path.read_text())
    assert read["holds"]
    text = report.readable(read)
    assert text.startswith("spark1, model:\n✓ ready token: one token\n")
    assert "model answered: Capital? Paris" in text
    assert "http://10.0.0.1:8000/v1/chat/completions" in text


def test_the_latest_report_of_a_pair_has_two_hosts(resolve: Callable[..., Spec], tmp_path: Path) -> None:
    request = request_of(resolve())
    runs = [("other", 0, "old", 1), ("spark1", 0, "new", 2), ("spark1", 0, "new", 3), ("spark2", 1, "new", 4)]
    for host, rank, fingerprint, at in runs:
        ranked = dataclasses.replace(request, rank=rank, launch=fingerprint)
        closing = report.closing(ranked, PASSED, "10.0.0.1")
        assert bool(closing) == (rank == 0)
        document = report.verification(ranked, PASSED, {"host": host, "closing": closing, "at": at})
        path = report.write(tmp_path, f"{host}-{at}", document)
        os.utime(path, (at, at))
    assert [(each["host"], each["at"]) for each in report.latest(tmp_path)] == [("spark1", 3), ("spark2", 4)]
    assert report.readable(report.latest(tmp_path)[1]).endswith("answer 0: Capital? Paris")


def test_the_closing_lines_contain_a_key_only_if_the_server_has_one(resolve: Callable[..., Spec]) -> None:
    with run_command.within(ThisRun(options=[("-i", "inv"), ("-K", "")])):
        assert report.closing(request_of(resolve()), PASSED, "h").endswith(
            "      ansible-playbook -i inv -K status.yml"
        )
    assert "Authorization" not in report.closing(request_of(resolve()), PASSED, "h")
    keyed = resolve(secrets={"HF_TOKEN": True, "VLLM_API_KEY": True})
    assert '-H "Authorization: Bearer $VLLM_API_KEY"' in report.closing(request_of(keyed), PASSED, "h")


def test_a_failed_gate_is_in_the_report(resolve: Callable[..., Spec]) -> None:
    failed = Verdict("answer", "0", False, "no answer", "Paris", "look.", "wrong-answers")
    document = report.verification(request_of(resolve()), [*PASSED, failed], {})
    assert not document["holds"]
    assert Verdict.from_json(failed.to_json()) == failed
    assert document["verdicts"][-1]["said"] == "no answer"
    assert str(failed) == "no answer — expected: Paris. Fix: look. See docs/runbooks/wrong-answers.md"
