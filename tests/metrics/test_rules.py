"""The rules, judged by the distribution's promtool: each alert is raised by a fault, and ends with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import promtool
from recorded_site import SPARK

from fakes import edge_cases
from vllm_spark.core import paths
from vllm_spark.edge import recorder

CASES = Path(__file__).with_name("alerts.yml").read_text(encoding="utf-8")
ALERTS, WATCH = (paths.TEMPLATES / f"metrics-{name}.yml" for name in ("alerts", "watch"))


def rules(file: Path) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    assert f"{len(rules(ALERTS))} rules found" in promtool("check", "rules", str(ALERTS))
    assert f"{len(rules(WATCH))} rules found" in promtool("check", "rules", str(WATCH))
    deployments, settings, address = edge_cases.GOLDEN["metrics-server"]
    text = recorder.prometheus(edge_cases.edge_of(deployments, settings), address, {"rules": f"{ALERTS}, {WATCH}"})
    file = tmp_path / "prometheus.yml"
    file.write_text(text.replace("/run/credentials/vllm-metrics-prometheus.service/ca.crt", __file__), encoding="utf-8")
    promtool("check", "config", str(file))


def test_each_alert_is_raised_by_its_fault_and_ends(tmp_path: Path) -> None:
    file = tmp_path / "alerts.yml"
    file.write_text(CASES.replace("{rules}", str(paths.TEMPLATES)), encoding="utf-8")
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_a_rule_that_is_broken_fails_its_case(tmp_path: Path) -> None:
    text = ALERTS.read_text(encoding="utf-8").replace("0.5 * avg_over_time", "0.01 * avg_over_time")
    (tmp_path / "metrics-alerts.yml").write_text(text, encoding="utf-8")
    (tmp_path / "metrics-watch.yml").write_text(WATCH.read_text(encoding="utf-8"), encoding="utf-8")
    file = tmp_path / "alerts.yml"
    file.write_text(CASES.replace("{rules}", str(tmp_path)), encoding="utf-8")
    with pytest.raises(AssertionError, match="the drafter no longer guesses"):
        promtool("test", "rules", str(file))


@pytest.mark.parametrize("rule", rules(ALERTS), ids=lambda rule: str(rule["alert"]))
def test_each_alert_has_a_case_a_sentence_and_a_runbook(rule: dict[str, Any]) -> None:
    cases = [one for test in yaml.safe_load(CASES)["tests"] for one in test["alert_rule_test"]]
    own = [bool(one["exp_alerts"]) for one in cases if one["alertname"] == rule["alert"]]
    # Before the fault, during it, and after it.
    assert own == [False, True, False]
    assert (paths.ROOT / "docs" / "runbooks" / f"{rule['annotations']['runbook']}.md").is_file()
    assert re.match(r"\{\{|the |one of ten", rule["annotations"]["summary"])
    assert rule["alert"] in (paths.ROOT / "docs" / "operations" / "metrics.md").read_text(encoding="utf-8")


def test_promtool_accepts_the_figures_of_a_spark() -> None:
    promtool("check", "metrics", stdin=SPARK.read_text(encoding="utf-8"))
