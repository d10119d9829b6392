"""What a switch does at a real HAProxy before it stops an engine: new requests are held back, running ones go on."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge_admin

from conftest import Start
from fakes.edge_cases import DEMO, THIRD
from fakes.running_edge import Answer, RunningEdge
from fakes.running_site import RunningSite
from fakes.scripted_engine import Event, Stream
from vllm_spark.node import edge_admin, host_layout, switch
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.state_writer import StateOf
from waiting import until

# Writes its arguments in a file beside it.
RECORDER = '#!/bin/sh\necho "$*" >> "$0.calls"\nexit {status}\n'


def ask(edge: RunningEdge, model: str = "model") -> Answer:
    return edge.ask("POST", "/v1/chat/completions", {"messages": [], "model": model})


def code(answer: Answer) -> str:
    """Return the code of an error, empty for a whole stream."""
    if answer.status == 200:
        assert answer.body.endswith(b"data: [DONE]\n\n")
        return ""
    return str(answer.error["code"])


@pytest.fixture
def edge(start: Start, monkeypatch: pytest.MonkeyPatch) -> RunningEdge:
    """The edge of this host: the programs find its socket."""
    running = start()
    monkeypatch.setattr(edge_admin, "ROUTE_SOCKET", running.files.route_admin_socket)
    return running


@pytest.fixture
def commands(tmp_path: Path, edge: RunningEdge, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of systemd's commands, which do nothing, and the files of the deployment demo."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("systemctl", "systemd-run"):
        place(folder / name)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    config = tmp_path / "etc" / "demo"
    config.mkdir(parents=True)
    (config / "liveness.json").write_text(
        json.dumps({"socket": f"{edge.files.sockets}/demo/api.sock", "model": "model"})
    )
    (config / "launch").touch()
    places = Places(edge.files.sockets, *(str(tmp_path / name) for name in ("states", "wants", "etc", "starts")))
    monkeypatch.setattr(switch, "PLACES", places)
    monkeypatch.setattr(switch, "CONFIG_DIR", tmp_path / "etc")
    StateOf("demo", places).write("serving")
    return folder


def place(command: Path, status: int = 0) -> None:
    command.write_text(RECORDER.format(status=status))
    command.chmod(0o755)


def calls(command: Path) -> list[str]:
    file = command.with_name(f"{command.name}.calls")
    return file.read_text().splitlines() if file.exists() else []


def test_a_running_stream_ends_whole_and_a_new_request_is_refused(edge: RunningEdge) -> None:
    with ThreadPoolExecutor() as pool:
        stream = pool.submit(ask, edge)
        until(lambda: edge_admin.requests_at("demo") == 1)
        assert edge_admin.hold_back("demo")
        assert code(ask(edge)) == "model_not_active"
        assert edge_admin.requests_at("demo") == 1
        assert code(stream.result()) == ""
    until(lambda: edge_admin.requests_at("demo") == 0)
    assert code(ask(edge)) == "model_not_active"
    assert edge_admin.let_in("demo")
    assert code(ask(edge)) == ""


def test_a_stopped_engine_is_down_at_once_and_up_when_a_check_finds_it(edge: RunningEdge) -> None:
    edge_admin.hold_back("demo")
    assert edge_admin.let_in("demo", stopped=True)
    assert code(ask(edge)) == "model_not_active"
    edge.wait_for("demo", "UP")
    assert code(ask(edge)) == ""


def test_a_reload_lets_in(edge: RunningEdge) -> None:
    edge_admin.hold_back("demo")
    before = edge.worker()
    edge.reload()
    until(lambda: edge.has_reloaded(before))
    assert code(ask(edge)) == ""


def test_an_edge_that_does_not_know_the_deployment_and_none(edge: RunningEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not edge_admin.hold_back("missing")
    assert not edge_admin.let_in("missing")
    assert edge_admin.requests_at("missing") == 0
    monkeypatch.setattr(edge_admin, "ROUTE_SOCKET", f"{edge.files.admin_socket}.missing")
    assert not edge_admin.hold_back("demo")
    assert not edge_admin.let_in("demo", stopped=True)
    assert edge_admin.requests_at("demo") == 0


def test_the_socket_is_the_one_of_the_plan() -> None:
    assert edge_admin.SOCKET == spark_edge_admin.SOCKET == host_layout.EDGE_ADMIN_SOCKET
    assert edge_admin.ROUTE_SOCKET == spark_edge_admin.ROUTE_SOCKET == host_layout.EDGE_ROUTE_ADMIN_SOCKET


def test_the_other_sparks_of_a_site_see_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}
    site = RunningSite(tmp_path, [DEMO, {**THIRD, "hosts": ["spark2"]}], {"site": members}, hosts=("spark1", "spark2"))
    site.engines["third"].streams = [Stream([Event(0.5 * number, content="word ") for number in range(1, 5)])]
    site.start()
    first, second = site.edges["spark1"], site.edges["spark2"]
    monkeypatch.setattr(edge_admin, "ROUTE_SOCKET", second.files.route_admin_socket)
    try:
        until(lambda: ask(first, "t").status == 200)
        with ThreadPoolExecutor() as pool:
            # One from the other Spark, one of its own clients.
            streams = [pool.submit(ask, one, "t") for one in (first, second)]
            until(lambda: edge_admin.requests_at("third") == 2)
            assert edge_admin.hold_back("third")
            assert code(ask(second, "t")) == "model_not_active"
            assert code(ask(first, "t")) in ("model_not_active", "engine_unavailable")
            assert [code(stream.result()) for stream in streams] == ["", ""]
        assert edge_admin.let_in("third")
        until(lambda: ask(first, "t").status == 200)
    finally:
        site.close()


def test_a_drain_ends_though_clients_ask_all_the_time(edge: RunningEdge, commands: Path) -> None:
    with ThreadPoolExecutor() as pool:
        streams = [pool.submit(ask, edge) for _ in range(4)]
        until(lambda: edge_admin.requests_at("demo") == 4)
        drained = pool.submit(switch.drain, "demo", 30.0, "for other")
        until(lambda: code(ask(edge)) == "model_draining")
        assert [code(stream.result()) for stream in streams] == [""] * 4
        assert drained.result()["left"] == 0
    assert code(ask(edge)) == "model_draining"
    # The timer lets in again if nobody else does, and ends with the change.
    [timer] = calls(commands / "systemd-run")
    assert "--unit=vllm-switch-let-in-demo.timer --on-active=150 " in timer
    assert timer.endswith("switch.py --step=let-in demo")
    assert switch.change(["demo"], "", 1.0)["ok"]
    assert calls(commands / "systemctl")[-2:] == [
        "stop vllm-switch-let-in-demo.timer",
        "reset-failed vllm@demo.service",
    ]
    edge.wait_for("demo", "UP")


def test_the_timer_lets_in(edge: RunningEdge, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switch.os, "geteuid", lambda: 0)
    switch.drain("demo", 0.0, "for other")
    assert code(ask(edge)) == "model_draining"
    assert switch.main(calls(commands / "systemd-run")[0].split()[-2:]) == 0
    assert code(ask(edge)) == ""


def test_nothing_is_held_back_without_a_timer(edge: RunningEdge, commands: Path) -> None:
    place(commands / "systemd-run", status=1)
    switch.drain("demo", 0.0, "for other")
    assert code(ask(edge)) == ""


def test_a_stop_that_fails_lets_in(edge: RunningEdge, commands: Path) -> None:
    switch.drain("demo", 0.0, "for other")
    place(commands / "systemctl", status=1)
    assert not switch.change(["demo"], "", 1.0)["ok"]
    assert code(ask(edge)) == ""
