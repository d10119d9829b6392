"""What the distribution's Prometheus records of a Spark through its edge, and what the page of that edge may ask."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from recorded_site import Site

from loopback import ADDRESS
from vllm_spark.core import paths
from vllm_spark.edge import recorder
from vllm_spark.node import delivery, host_layout
from waiting import until

CASES = Path(__file__).with_name("alerts.yml").read_text(encoding="utf-8")
NAMES = recorder.RECORD.findall((paths.TEMPLATES / "metrics-watch.yml").read_text(encoding="utf-8"))
DASHBOARD = paths.ROOT / "docs" / "operations" / "grafana-dashboard.json"
# What a machine of tests does not have, and a case of alerts.yml gives all the same: a disk of its own.
ABSENT = {"node_filesystem_avail_bytes", "node_filesystem_size_bytes", "node_pressure_memory_stalled_seconds_total"}


def firing(site: Site) -> set[str]:
    return {one["metric"]["alertname"] for one in site.query('ALERTS{alertstate="firing"}')}


def asked(site: Site, path: str) -> list[dict[str, Any]]:
    """Return the series that the edge gives to a person with a key."""
    answer = site.edge.ask("GET", path)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    return list(json.loads(answer.body)["data"]["result"])


def test_everything_is_recorded_through_the_edge_alone(site: Site) -> None:
    targets = site.get("prometheus", "/api/v1/targets")["data"]["activeTargets"]
    assert {one["labels"]["job"] for one in targets} == {"engine", "host", "edge", "route"}
    assert {one["discoveredLabels"]["__address__"] for one in targets} == {f"{ADDRESS}:{site.ports['metrics']}"}
    # `other` does not run, and no alert is about that.
    until(lambda: len(site.query("up == 1")) == 4)
    assert [one["metric"]["deployment"] for one in site.query("up == 0")] == ["other"]
    assert firing(site) == set()


def test_each_series_of_the_cases_is_one_that_an_exporter_has(site: Site) -> None:
    until(lambda: len(site.query("up == 1")) == 4)
    known = {}
    for one in site.query('{job=~".+"}'):
        known.setdefault(one["metric"]["__name__"], set()).update(one["metric"])
    known["up"] = {"job", "spark", "instance"}
    for test in yaml.safe_load(CASES)["tests"]:
        for given in test["input_series"]:
            name, labels = re.fullmatch(r"([\w:]+)\{(.*)\}", given["series"]).groups()  # type: ignore[union-attr]
            if name not in ABSENT or name in known:
                assert set(re.findall(r'(\w+)="', labels)) <= known[name], name


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_of_the_page_is_there(calm: Site, name: str) -> None:
    if name == "memory_stalled" and not Path("/proc/pressure/memory").exists():
        pytest.skip("this kernel has no /proc/pressure")
    for range_ in ("hour", "day"):
        until(lambda range_=range_: asked(calm, f"/watch/{range_}/{name}"))  # type: ignore[misc]


def test_each_panel_of_the_dashboard_has_figures(calm: Site) -> None:
    panels = [one for one in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"] if one["type"] != "text"]
    assert len(panels) >= 10
    for target in (target for panel in panels for target in panel["targets"]):
        query = target["expr"].replace("$spark", ".*")
        if "memory_stalled" not in query or Path("/proc/pressure/memory").exists():
            until(lambda query=query: calm.query(query))  # type: ignore[misc]


def test_the_page_needs_no_key_and_has_no_data(site: Site) -> None:
    answer = site.edge.ask("GET", "/watch", key=None)
    assert (answer.status, answer.body) == (200, (paths.TEMPLATES / "metrics-page.html").read_bytes())
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    # Who has shown no key is still a stranger.
    assert "key=" not in site.edge.admin("show table edge_known")


@pytest.mark.parametrize(
    ("method", "path", "key", "status"),
    [
        ("GET", "/watch/hour/power", None, 401),
        ("GET", "/watch/hour/power", "sk-of-nobody", 401),
        ("GET", "/watch/hour/secrets", "", 404),
        ("GET", "/watch/week/power", "", 404),
        ("GET", "/watch/hour/power/..", "", 404),
        ("GET", "/watch/hour/", "", 404),
        ("GET", "/watch/", "", 404),
        ("GET", "/watch/hour/power%22", "", 404),
        ("POST", "/watch/hour/power", "", 404),
        ("POST", "/watch", "", 404),
        ("GET", "/api/v1/query?query=up", "", 404),
        ("GET", "/user/page.html", "", 404),
        ("GET", "/metrics/host", "", 404),
    ],
)
def test_nothing_else_reaches_prometheus(calm: Site, method: str, path: str, key: str | None, status: int) -> None:
    more = {} if key == "" else {"key": key}
    assert calm.edge.ask(method, path, **more).status == status  # type: ignore[arg-type]


def test_a_query_of_the_client_is_replaced(calm: Site) -> None:
    path = "/watch/hour/power?query=up&start=0&step=1"
    until(lambda: asked(calm, path))
    assert {one["metric"]["__name__"] for one in asked(calm, path)} == {"watch:power"}


def test_a_fault_becomes_an_alert_of_alertmanager_and_ends(site: Site) -> None:
    site.state("gave up")
    until(lambda: "GaveUp" in {one["labels"]["alertname"] for one in site.get("alerts", "/api/v2/alerts")})
    # A Spark tells this by itself, so it is not told twice; what is marked in no way is. The disk is this machine's,
    # and fills while other suites install their packages.
    assert {"alert DiskFull spark1"} >= set(delivery.alerts(f"http://{ADDRESS}:{site.ports['alerts']}"))
    site.figures = site.figures.replace("celsius{} 71", "celsius{} 93")
    site.state("serving")
    alerts = f"http://{ADDRESS}:{site.ports['alerts']}"
    until(lambda: "alert SocHot spark1" in delivery.alerts(alerts))
    hot = delivery.alerts(alerts)["alert SocHot spark1"]
    assert hot.what.startswith("the chip of spark1 is hot")
    assert hot.fix == "see docs/runbooks/gpu-clocks.md."
    until(lambda: "GaveUp" not in firing(site))


def test_a_hang_is_told_from_a_long_prompt(site: Site) -> None:
    """The GPU of the recorded Spark takes 52 W, so requests without a token alone are no hang."""
    running = next(series for series in site.engine.counters if series.startswith("vllm:num_requests_running"))
    site.engine.counters[running] = 1.0
    site.stalls.set()
    until(lambda: site.query("sum(rate(vllm:generation_tokens_total[3s])) == 0"))
    assert "EngineHangs" not in firing(site)
    site.figures = site.figures.replace("watts{} 52.35", "watts{} 19.8")
    site.state("serving")
    # The rule looks at two minutes; a shorter look of the same form is enough here.
    hang = "sum(vllm:num_requests_running) > 0 and sum(rate(vllm:generation_tokens_total[3s])) == 0"
    until(lambda: site.query(f"{hang} unless max(vllm_spark_gpu_power_watts) > 30"))


def test_records_survive_the_loss_of_power(site: Site, tmp_path: Path) -> None:
    until(lambda: len(site.query("watch:power[1h]")) and len(site.query("watch:power[1h]")[0]["values"]) > 3)
    before = site.query("watch:power[1h]")[0]["values"]
    os.kill(site.recorder.pid, signal.SIGKILL)
    site.recorder.wait()
    # A write that the loss has cut: half of a record at the end of the log.
    newest = max((tmp_path / "prometheus" / "wal").glob("0*"))
    newest.write_bytes(newest.read_bytes() + b"\x01\x00\xff\x12\x34")
    with site.program(host_layout.METRICS_PROMETHEUS):
        until(lambda: site.query("watch:power[1h]"))
        after = [time for time, _ in site.query("watch:power[1h]")[0]["values"]]
        # A second is the most that the log may lack.
        assert len([time for time, _ in before if time not in after]) <= 1


def test_nothing_listens_but_on_the_loopback_device(calm: Site) -> None:
    """Each program with the words of its unit; a HAProxy of the edge has its own addresses."""
    own = {f"{calm.ports[name]:04X}" for name in ("exporter", "prometheus", "alerts")}
    lines = [
        line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]
    ]
    listening = [line[1] for line in lines if line[3] == "0A"]
    assert {address.rpartition(":")[0] for address in listening if address.rpartition(":")[2] in own} == {"0100007F"}
    # Alertmanager would look for others of its kind there.
    with socket.socket() as probe:
        assert probe.connect_ex((ADDRESS, 9094)) != 0
