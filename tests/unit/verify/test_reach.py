"""The gate `reach`: who asks the printed address, and what the response means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_ansible import FakeRun, load_action
from fakes.gate_requests import gate_request
from vllm_spark.core import paths
from vllm_spark.inventory.spec import Spec
from vllm_spark.verify import registry, report, runner
from vllm_spark.verify.gates import reach

URL = "http://10.0.0.1:40000"
ASKED = {"url": URL, "source": "from this machine"}


@pytest.mark.parametrize(
    ("response", "ok", "part"),
    [
        ({**ASKED, "status": 200}, True, f"{URL} answers from this machine"),
        # A server that wants a key has answered.
        ({**ASKED, "status": 401}, True, "answers"),
        ({**ASKED, "error": "no whole reply within 10 s"}, False, "does not answer from this machine: no whole reply"),
        ({**ASKED, "error": "ConnectionRefusedError: [Errno 111] Connection refused"}, False, "Connection refused"),
        ({**ASKED, "error": "gaierror: [Errno -2] Name or service not known"}, None, "Name or service not known"),
        ({**ASKED, "error": "OSError: [Errno 101] Network is unreachable"}, None, "Network is unreachable"),
        ({"url": URL, "unasked": "ssh reaches the Spark through another machine"}, None, "through another machine"),
        ({}, None, "nobody asked the address"),
    ],
)
def test_verdict(response: dict[str, Any], ok: bool | None, part: str) -> None:
    probe: Any = {"responses": {"reach": response}}
    (verdict,) = reach.judge(gate_request(bind="0.0.0.0"), probe, [])  # noqa: S104  an inventory's `bind`
    assert verdict.ok is ok
    assert part in str(verdict)
    assert ok is not False or (paths.RUNBOOKS / f"{verdict.runbook}.md").is_file()


@pytest.mark.parametrize(
    ("local", "ssh", "asks"),
    [
        (False, "", True),
        (False, "-o ControlMaster=auto -o ControlPersist=60s", True),
        (False, "-o ProxyJump=bastion", False),
        (False, "-J bastion", False),
        (False, '-o ProxyCommand="ssh -W %h:%p bastion"', False),
        (True, "", False),
    ],
)
def test_who_asks(local: bool, ssh: str, asks: bool) -> None:
    assert (reach.obstacle(local, ssh) == "") is asks


@pytest.mark.parametrize(("bind", "judged"), [("0.0.0.0", True), ("10.0.0.1", True), ("127.0.0.1", False), ("", False)])  # noqa: S104
def test_a_server_for_its_own_host_alone_is_not_judged(bind: str, judged: bool) -> None:
    names = [[round_.name for round_ in runner.rounds(gate_request(bind=bind, rank=rank))] for rank in (0, 1)]
    assert ["reach" in of_rank for of_rank in names] == [judged, judged]
    assert reach.GATE in registry.GATES


@pytest.mark.parametrize(
    ("bind", "url"),
    [
        ("0.0.0.0", "http://10.0.0.1:8000"),  # noqa: S104
        ("192.168.7.1", "http://192.168.7.1:8000"),
        ("127.0.0.1", "http://127.0.0.1:8000"),
    ],
)
def test_the_printed_address_is_the_one_that_listens(bind: str, url: str) -> None:
    request = gate_request(bind=bind)
    assert request.client_url("10.0.0.1") == url
    assert f"It serves at {url}/v1" in report.closing(request, [], "10.0.0.1")


def test_an_ipv6_address_has_brackets() -> None:
    assert gate_request(bind="0.0.0.0").client_url("fd00::1") == "http://[fd00::1]:8000"  # noqa: S104


def run_of(request: Any, host: str, sent: list[Any], monkeypatch: pytest.MonkeyPatch, **variables: Any) -> FakeRun:
    """Return a run whose modules answer every request, and whose controller records its own in `sent`."""

    def probe(args: dict[str, Any]) -> dict[str, Any]:
        labels = {"vllm-spark.launch": request.launch}
        responses = {one["id"]: {"status": 200, "seconds": 0.1} for one in args["requests"]}
        return {
            "probe": {
                "unit": {"ActiveState": "active", "NRestarts": "0"}, "running_s": 1.0, "lines": [], "cursor": "c",
                "responses": responses, "state": {"state": "serving"},
                "container": {"state": "running", "image": request.image, "labels": labels},
            }
        }  # fmt: skip

    plugin = load_action("vllm_verify")

    def send(server: tuple[str, int], asked: dict[str, Any], key: str) -> dict[str, Any]:
        sent.append((server, asked["path"], key))
        return {"status": 200, "seconds": 0.1}

    monkeypatch.setitem(plugin.act.__globals__, "send", send)
    hostvars: dict[str, dict[str, Any]] = {
        "spark1": {"ansible_host": "10.0.0.1"},
        "spark2": {"ansible_host": "10.0.0.2"},
    }
    deployment = {"name": variables.get("name", "demo"), "hosts": ["spark1", "spark2"]}
    hostvars[host]["spark_precheck_resolved"] = {"spec": {"deployment": deployment}}
    run = FakeRun(host=host, hostvars=hostvars, modules={"vllm_probe": probe})
    run.plugin = plugin  # type: ignore[attr-defined]
    monkeypatch.setattr(plugin, "obstacle", lambda _self: "")
    return run


def arguments(request: Any, folder: Path) -> dict[str, Any]:
    base = {"phase": "gates", "gates": request.to_json(), "env_path": "/etc/vllm-spark/demo/env"}
    return {**base, "reason": "first", "wait": True, "report_dir": str(folder)}


def test_the_other_rank_asks_the_head_over_the_printed_address(
    resolve: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = dataclasses.replace(gate_request(bind="0.0.0.0"), rank=1)  # noqa: S104
    sent: list[Any] = []
    run = run_of(request, "spark2", sent, monkeypatch)
    run.verbosity = 1
    result = run.act(run.plugin, **arguments(request, tmp_path))  # type: ignore[attr-defined]
    assert result["holds"], result
    assert sent == []
    assert run.calls[-1][1]["requests"][0]["base"] == "http://10.0.0.1:8000"
    assert "✓ reach address: http://10.0.0.1:8000 answers from spark2" in "\n".join(run.lines)


def test_a_rank_of_another_deployment_than_the_resolved_one_does_not_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = dataclasses.replace(gate_request(bind="0.0.0.0"), rank=1)  # noqa: S104
    run = run_of(request, "spark2", [], monkeypatch, name="another")
    assert run.act(run.plugin, **arguments(request, tmp_path))["holds"]  # type: ignore[attr-defined]
    assert "— reach address: nobody asked" in "\n".join(run.lines)


def test_the_controller_asks_the_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    request = gate_request(bind="0.0.0.0")  # noqa: S104
    sent: list[Any] = []
    run = run_of(request, "spark1", sent, monkeypatch)
    reach_only = [runner.Round("reach", (), [reach.judge])]
    first = runner.rounds(dataclasses.replace(request, rank=1))[0]
    monkeypatch.setattr(runner, "rounds", lambda _request, **_how: [first, *reach_only])
    result = run.act(run.plugin, **arguments(request, tmp_path))  # type: ignore[attr-defined]
    assert sent == [(("10.0.0.1", 8000), "/health", "")]
    assert result["gates"]["held"][-1] == "reach"
