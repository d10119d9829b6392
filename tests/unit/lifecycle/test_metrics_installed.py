"""What the inventory says about figures, and what a deploy places on the host that records them and on the others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_holdings, spark_status

from fakes import edge_cases
from fakes.fake_ansible import FakeRun
from vllm_spark.core.refusal import RefusedError
from vllm_spark.deploy import files
from vllm_spark.edge import recorder
from vllm_spark.inventory import edge, notify
from vllm_spark.lifecycle import metrics
from vllm_spark.node import host_layout

DEPLOYMENTS, SETTINGS, ADDRESS = edge_cases.GOLDEN["metrics-server"]
MODULES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "vllm_files": lambda args: {"changed": True, "changed_paths": [file["path"] for file in args["files"]]},
    "ansible.builtin.systemd_service": lambda _: {"changed": True, "state": "started"},
    "vllm_remove": lambda args: {"changed": True, "removed": [item["name"] for item in args["items"]]},
}
PACKAGES = ["prometheus-node-exporter", "prometheus", "prometheus-alertmanager"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"metrics_server": "spark1"}, "vllm_edge.metrics_server: spark1, and there is no metrics_from"),
        ({"open": True, "metrics_server": "spark1", "metrics_from": ["10.0.0.5"]}, "spark1, and open is true"),
        ({"tls": "off", "metrics_server": "spark1", "metrics_from": ["10.0.0.5"]}, "spark1, and tls is off"),
        ({**SETTINGS, "metrics_server": "spark9"}, "vllm_edge.metrics_server: spark9"),
        ({**SETTINGS, "metrics_days": 0}, "vllm_edge.metrics_days: 0"),
        ({**SETTINGS, "metrics_gib": "4"}, 'vllm_edge.metrics_gib: "4"'),
    ],
)
def test_figures_that_nobody_could_record_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(RefusedError) as refused:
        edge.parse(settings)
    assert what in " ".join(refusal.what for refusal in refused.value.refusals)


def run(host: str = "spark1", present: dict[str, list[str]] | None = None, **changed: Any) -> FakeRun:
    settings = {**SETTINGS, **changed}
    settings = {name: value for name, value in settings.items() if value is not None}
    known = edge_cases.intent_of(DEPLOYMENTS, settings, host)
    resolved = {"spark_precheck_resolved": known.to_json(), "ansible_host": ADDRESS}
    facts = {"spark_precheck_box": {"facts": {"files": present or {}}}, "spark_lock_verb": "deploy"}
    return FakeRun(host=host, hostvars={host: {**resolved, **facts}}, modules=MODULES)


def placed(host: str = "spark1") -> dict[str, list[str]]:
    """Return the files of a host after a deploy, as its facts have them."""
    first = run(host)
    units = first.act("vllm_metrics", phase="place")["units"]
    files_ = {file["path"]: file for file in first.calls[0][1]["files"]}
    found = {
        path: [hashlib.sha256(file["content"].encode()).hexdigest(), file["mode"]] for path, file in files_.items()
    }
    packages = {metrics.OF_PACKAGE.format(name): ["", "0644"] for name in PACKAGES}
    return {**found, **{metrics.enabled(unit): ["", "0644"] for unit in units}, **packages}


def test_the_host_that_records_gets_everything_and_the_others_their_exporter() -> None:
    first = run()
    done = first.act("vllm_metrics", phase="place")
    assert (done["units"], done["lacks"]) == (list(metrics.UNITS), PACKAGES)
    ((name, arguments),) = first.calls
    assert name == "vllm_files"
    paths = {file["path"] for file in arguments["files"]}
    assert {host_layout.METRICS_CONFIG, host_layout.METRICS_RULES, host_layout.METRICS_KEPT, recorder.PAGE} <= paths
    assert f"{host_layout.MODULES}/vllm_spark/node/certificate.py" in paths
    assert first.lines[0].startswith("spark1  the figures of this host will be recorded by spark1: vllm-metrics.timer")
    other = run("spark2").act("vllm_metrics", phase="place")
    assert (other["units"], other["lacks"]) == (list(metrics.UNITS)[:2], PACKAGES[:1])


def test_the_units_start_after_their_packages() -> None:
    started = run()
    started.act("vllm_metrics", phase="start", units=["vllm-metrics.timer"])
    assert [name for name, _ in started.calls] == ["ansible.builtin.systemd_service"]
    assert started.calls[0][1] == {
        "name": "vllm-metrics.timer",
        "enabled": True,
        "state": "restarted",
        "daemon_reload": True,
    }


@pytest.mark.parametrize("host", ["spark1", "spark2"])
def test_a_deploy_that_changes_nothing_asks_nothing(host: str) -> None:
    again = run(host, placed(host))
    assert again.act("vllm_metrics", phase="place") == {"changed": False, "lacks": [], "units": []}
    assert again.calls == again.lines == []


def test_a_package_of_the_owner_is_not_installed_again_and_its_service_left_alone() -> None:
    own = {metrics.OF_PACKAGE.format("prometheus"): ["", "0644"]}
    assert run(present=own).act("vllm_metrics", phase="place")["lacks"] == [PACKAGES[0], PACKAGES[2]]


@pytest.mark.parametrize("settings", [{"metrics_server": None}, {"metrics_server": None, "metrics_from": None}])
def test_without_the_setting_nothing_is_placed(settings: dict[str, Any]) -> None:
    none = run(**settings)
    assert none.act("vllm_metrics", phase="place") == {"changed": False, "lacks": [], "units": []}
    assert none.calls == none.lines == []


def test_without_the_setting_what_runs_is_stopped() -> None:
    gone = run(present=placed(), metrics_server=None)
    assert gone.act("vllm_metrics", phase="place")["changed"]
    ((name, arguments),) = gone.calls
    assert name == "vllm_remove"
    assert [item["name"] for item in arguments["items"] if item["kind"] == "unit"] == list(metrics.UNITS)


def test_another_host_that_records_takes_it_over() -> None:
    moved = run(present=placed(), metrics_server="spark2")
    moved.act("vllm_metrics", phase="place")
    assert [name for name, _ in moved.calls] == ["vllm_remove"]
    stopped = [item["name"] for item in moved.calls[0][1]["items"] if item["kind"] == "unit"]
    assert stopped == [host_layout.METRICS_PROMETHEUS, host_layout.METRICS_ALERTS]


def test_the_recorder_asks_every_spark_of_the_site_at_an_address_of_its_certificate() -> None:
    own = edge_cases.edge_of(DEPLOYMENTS, SETTINGS)
    text = recorder.prometheus(own, ADDRESS)
    for host, address in edge_cases.SITE.items():
        assert f'{{targets: ["{address}:9464"], labels: {{spark: {host}}}}}' in text
    # Each engine of a Spark that has several.
    several = [one["name"] for one in DEPLOYMENTS if one["hosts"] == ["spark1"]]
    asked = [f"labels: {{spark: spark1, deployment: {name}, __param_engine: {name}}}" for name in several]
    assert [text.count(one) for one in asked] == [1] * len(several)
    alone = {name: value for name, value in SETTINGS.items() if name != "site"}
    text = recorder.prometheus(edge_cases.edge_of([edge_cases.DEMO], alone), "10.0.0.20")
    assert text.count('targets: ["10.0.0.20:9464"], labels: {spark: spark1}') == len(recorder.JOBS)


def test_the_settings_of_notify_say_whom_a_spark_asks() -> None:
    told = notify.parse({"url": "https://ntfy.sh/x", "heartbeat": "https://hc.home/KEY/{host}"}, {})
    own = edge_cases.edge_of(DEPLOYMENTS, SETTINGS)
    text = notify.settings(told, "spark1", {}, own)
    for host, address in edge_cases.SITE.items():
        assert f'"{host}": "https://{address}:' in text
    assert '"alerts": "http://127.0.0.1:25097"' in text
    assert '"heartbeat": "https://hc.home/KEY/spark1"' in text
    other = notify.settings(told, "spark2", {}, edge_cases.edge_of(DEPLOYMENTS, SETTINGS, "spark2"))
    assert "25097" not in other


@pytest.mark.parametrize(
    "heartbeat", ["https://hc.home", "hc.home/x", "https://ben:pw@hc.home/x", "https://hc.home/a b"]
)
def test_a_heartbeat_that_nobody_can_ask_is_refused(heartbeat: str) -> None:
    with pytest.raises(RefusedError) as refused:
        notify.parse({"url": "https://ntfy.sh/x", "heartbeat": heartbeat}, {})
    (refusal,) = refused.value.refusals
    assert refusal.what.startswith("vllm_notify.heartbeat: another text")
    assert heartbeat not in str(refusal)


def test_the_facts_of_a_host_and_remove_know_every_file(tmp_path: Path) -> None:
    own = edge_cases.edge_of(DEPLOYMENTS, SETTINGS)
    wanted = [*recorder.files(own, ADDRESS), *files.metrics_modules()]
    for file in wanted:
        path = tmp_path / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.content)
    for unit in metrics.UNITS:
        link = tmp_path / metrics.enabled(unit).lstrip("/")
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(f"../{unit}")
    found = set(spark_status.files([], str(tmp_path)))
    assert {file.path for file in wanted} | {metrics.enabled(unit) for unit in metrics.UNITS} <= found
    removed, others = spark_holdings.unit_files(str(tmp_path))
    assert {Path(path).name for path in removed} == {*metrics.UNITS, "vllm-metrics.service"}
    assert others == []
    assert "vllm-metrics*" in spark_holdings.UNIT_PATTERNS
    folders = (host_layout.PROGRAM_DIR, host_layout.CONFIG_DIR, host_layout.STATE_DIR, host_layout.UNIT_DIR)
    assert [file.path for file in wanted if not file.path.startswith(folders)] == []
    # A folder there would be a deployment for other verbs.
    config = f"{host_layout.CONFIG_DIR}/"
    own_files = [file.path.removeprefix(config) for file in wanted if file.path.startswith(config)]
    assert [name for name in own_files if "/" in name] == []
