"""How a Spark ended: public records, and the same ends with what Prometheus has recorded until then."""

from __future__ import annotations

import io
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.modules import vllm_collect_logs

import project_files
from vllm_spark.core import strict_yaml
from vllm_spark.doctor import command
from vllm_spark.doctor.diagnosis import judge
from vllm_spark.doctor.findings import Finding

ENDS: list[dict[str, Any]] = strict_yaml.load_own(
    (project_files.DATA / "doctor-deaths.yml").read_text(encoding="utf-8")
)
CUT = next(one["log"] for one in ENDS if one["id"] == "powered-off-under-load")


def findings(log: str, end: bool = True) -> list[Finding]:
    """Return what the doctor finds in a file of the host."""
    text = f"{vllm_collect_logs.BEGINS}\n{log}" if end else log
    name = "host/boot-previous.log"
    return list(judge([command.judged(name, io.BytesIO(text.encode()), engine=command.is_engine_log(name))]).findings)


@pytest.mark.parametrize("one", ENDS, ids=lambda one: str(one["id"]))
def test_an_end_is_told_from_the_others(one: dict[str, Any]) -> None:
    found = findings(one["log"], one.get("end", False))
    assert ([finding.signature for finding in found][:1] or [""]) == [one["expected"]]
    assert not found or one["cause"] in found[0].cause


@pytest.mark.parametrize(
    ("recorded", "cause"),
    [
        ("", "Without a recording it cannot be told"),
        (
            '{alertname="SocHot", spark="spark1", alertstate="firing"} => 1 @[1795911124]\n',
            "lost its power while it was hot",
        ),
        ('{alertname="MemoryPressure", spark="spark1"} => 1 @[1795911124]\n', "froze for lack of memory"),
        ('watch:temperature{spark="spark1"} => 61 @[1795911124]\n', "has neither lack of memory nor heat"),
    ],
)
def test_what_was_recorded_tells_ends_apart(recorded: str, cause: str) -> None:
    (found,) = findings(f"{CUT}\nvllm-spark: recorded until then\n{recorded}")
    assert cause in found.cause
    assert found.runbook == "spark-died.md"
