"""What a client reads while a model does not serve: the state that its programs have written, at a real HAProxy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Start
from fakes import edge_cases
from fakes.edge_cases import DEMO, OTHER, PAIR, SPARE
from fakes.running_edge import Answer, RunningEdge
from fakes.running_site import RunningSite
from vllm_spark.node import edge_admin
from vllm_spark.node.deployment_state import Places
from vllm_spark.node.lease import Lease
from vllm_spark.node.state_writer import StateOf, write_map
from waiting import until

Write = Callable[..., None]
COMMAND = "ansible-playbook"


def ask(edge: RunningEdge, model: str | None = "other-model") -> Answer:
    named = {"model": model} if model else {}
    return edge.ask("POST", "/v1/chat/completions", {"messages": [], **named})


def code(answer: Answer) -> str:
    return "" if answer.status == 200 else str(answer.error["code"])


def restart(edge: RunningEdge) -> None:
    """Restart HAProxy, and wait for its first checks: before them it takes every engine for one that is up."""
    edge.restart()
    edge.wait_for("other", "DOWN")


def writer(edge: RunningEdge, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes a state as the programs of the edge's Spark do."""
    etc = edge.folder / "etc"
    for name in ("demo", "other", "pair", "second", "spare"):
        (etc / name).mkdir(parents=True)
        (etc / name / "launch").touch()
    places = Places(
        edge.files.sockets,
        str(edge.folder / "states"),
        str(edge.folder / "wants"),
        str(etc),
        str(edge.folder / "starts"),
    )
    monkeypatch.setattr(edge_admin, "ROUTE_SOCKET", edge.files.route_admin_socket)

    def write(state: str, name: str = "other", why: str = "a reason") -> None:
        StateOf(name, places).write(state, why)

    return write


@pytest.fixture
def edge(start: Start) -> RunningEdge:
    return start()


@pytest.fixture
def write(edge: RunningEdge, monkeypatch: pytest.MonkeyPatch) -> Write:
    return writer(edge, monkeypatch)


@pytest.mark.parametrize(
    ("state", "expected", "command"),
    [
        ("wanted", "model_loading", ""),
        ("loading", "model_loading", ""),
        # The engine has just ended, and the unit has not noticed.
        ("serving", "model_loading", ""),
        ("failed", "model_loading", ""),
        ("draining", "model_draining", ""),
        ("gave up", "model_failed", "deploy.yml"),
        ("stopped", "model_not_active", "switch.yml -e to=other"),
    ],
)
def test_a_client_reads_what_a_model_does(
    state: str, expected: str, command: str, edge: RunningEdge, write: Write
) -> None:
    write(state)
    retry = "" if command else "10"
    for model in ("other-model", "o/1"):
        answer = ask(edge, model)
        assert (answer.status, answer.error["code"], answer.headers.get("retry-after", "")) == (503, expected, retry)
        assert answer.error["type"] == "service_unavailable_error"
        assert (COMMAND in answer.error["message"]) == bool(command)
        assert answer.error["message"].endswith(command)
    # What serves is asked, whatever is written.
    write("gave up", "demo")
    assert ask(edge, "model").status == 200


def test_a_client_reads_for_how_long_the_memory_of_a_model_is_lent(edge: RunningEdge, write: Write) -> None:
    def noted(until: float) -> None:
        (edge.folder / "lease.json").write_text(Lease("spark1", 40, until, "ada", ("other",)).text())

    noted(time.time() + 5400)
    write("lent")
    answer = ask(edge)
    assert (answer.status, answer.error["code"]) == (503, "lent")
    assert answer.error["type"] == "service_unavailable_error"
    left = int(answer.headers["retry-after"])
    assert 5390 <= left <= 5401
    assert f" for {left} s, " in answer.error["message"]
    # A longer one is told at once, and a restarted edge knows it.
    noted(time.time() + 9000)
    write("lent", why="another time")
    assert int(ask(edge).headers["retry-after"]) > 8900
    restart(edge)
    assert int(ask(edge).headers["retry-after"]) > 8900
    # The time is over, and the memory is not free.
    noted(time.time() - 9000)
    write("lent", why="its lease has ended")
    assert (code(ask(edge)), ask(edge).headers["retry-after"]) == ("lent", "60")
    assert ask(edge, "model").status == 200
    write("loading")
    assert code(ask(edge)) == "model_loading"


def test_a_state_that_nobody_has_written_is_that_of_an_inactive_model(edge: RunningEdge) -> None:
    assert ask(edge).error["message"].endswith(f"{COMMAND} switch.yml -e to=other")


def test_each_change_is_seen_at_once_and_by_a_restarted_edge(edge: RunningEdge, write: Write) -> None:
    for state, expected in (("loading", "model_loading"), ("stopped", "model_not_active"), ("wanted", "model_loading")):
        write(state)
        assert code(ask(edge)) == expected
    before = edge.worker()
    edge.reload()
    until(lambda: edge.has_reloaded(before))
    edge.wait_for("other", "DOWN")
    assert code(ask(edge)) == "model_loading"
    restart(edge)
    assert code(ask(edge)) == "model_loading"
    write("gave up")
    assert code(ask(edge)) == "model_failed"
    assert edge.admin_route(f"show map {edge.files.states}").count(" other ") == 1


def test_a_state_is_written_though_no_edge_answers(edge: RunningEdge, write: Write) -> None:
    edge_admin.ROUTE_SOCKET += ".missing"  # the fixture puts it back
    write("loading")
    assert code(ask(edge)) == "model_not_active"
    restart(edge)
    assert code(ask(edge)) == "model_loading"


def test_who_names_no_model_reads_what_this_spark_does(edge: RunningEdge, write: Write) -> None:
    edge.admin_route("disable server demo/engine")
    assert ask(edge, None).error["message"] == "No model of this Spark is started."
    for state, expected in (("loading", "model_loading"), ("stopped", "nothing_started")):
        write(state, "demo")
        assert [code(ask(edge, None)), code(edge.ask("GET", "/v1/models"))] == [expected] * 2


def test_a_model_that_loads_is_what_this_spark_has(edge: RunningEdge, write: Write) -> None:
    edge.admin_route("disable server demo/engine")
    write("loading", "demo")
    assert ask(edge).error["message"].startswith("other-model is not active: this Spark serves model, which is loading")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., RunningEdge]]:
    """A function that starts the edge of a host with these deployments."""
    edges: list[RunningEdge] = []

    def start(deployments: list[dict[str, Any]], host: str) -> RunningEdge:
        planned = edge_cases.edge_of(deployments, {"open": False}, host)
        edge = RunningEdge(planned, tmp_path)
        edge.start()
        edges.append(edge)
        for one in planned.backends:
            edge.wait_for(one.deployment, "DOWN")
        return edge

    yield start
    for edge in edges:
        edge.close()


SECOND = {**OTHER, "name": "second", "hosts": ["spark2"]}


@pytest.mark.parametrize("state", ["wanted", "loading", "serving", "failed", "draining"])
def test_the_edge_of_a_worker_offers_nothing_that_ends_its_pair(
    state: str, running: Callable[..., RunningEdge], monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = running([PAIR, SECOND], "spark2")
    write = writer(edge, monkeypatch)
    write(state, "pair")
    for model in ("other-model", None):
        answer = ask(edge, model)
        assert (answer.status, answer.error["code"]) == (503, "model_not_active")
        assert answer.error["message"] == (
            "This Spark has no model of its own now: it is a part of pair, which spark1 serves. Ask that Spark."
        )
    write("stopped", "pair")
    assert ask(edge).error["message"].endswith(f"{COMMAND} switch.yml -e to=second")


def test_the_edge_of_a_worker_says_that_its_pair_gave_up(
    running: Callable[..., RunningEdge], monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = running([PAIR, SECOND], "spark2")
    writer(edge, monkeypatch)("gave up", "pair")
    for model in ("a-model-of-the-pair", None):
        answer = ask(edge, model)
        assert (answer.status, answer.error["code"]) == (503, "model_failed")


def test_the_edge_of_a_worker_says_that_the_memory_of_its_pair_is_lent(
    running: Callable[..., RunningEdge], monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = running([PAIR, SECOND], "spark2")
    (edge.folder / "lease.json").write_text(Lease("spark1", 40, time.time() + 900, "ada", ("pair",)).text())
    writer(edge, monkeypatch)("lent", "pair")
    answer = ask(edge, None)
    assert (answer.status, answer.error["code"]) == (503, "lent")
    assert 890 <= int(answer.headers["retry-after"]) <= 901
    # Another model of this Spark is not lent.
    assert code(ask(edge)) == "model_not_active"


@pytest.mark.parametrize("state", ["wanted", "loading", "failed", "gave up"])
def test_a_name_of_two_deployments_has_the_state_of_the_one_that_is_wanted(
    state: str, running: Callable[..., RunningEdge], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"served_name": "shared", "aliases": []}
    solo = {**OTHER, "overrides": {"model": names}}
    pair = {**PAIR, "overrides": {"model": names}}
    expected = "model_failed" if state == "gave up" else "model_loading"
    edge = running([solo, pair], "spark1")
    write = writer(edge, monkeypatch)
    write("stopped", "other")
    write(state, "pair")
    assert code(ask(edge, "shared")) == expected
    write("stopped", "pair")
    write(state, "other")
    assert code(ask(edge, "shared")) == expected


def test_a_site_says_what_its_own_spark_does_and_commands_nothing_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}
    deployments = [DEMO, OTHER, {**SPARE, "active": False}]
    site = RunningSite(tmp_path, deployments, {"site": members}, hosts=("spark1", "spark2"))
    site.start()
    try:
        first, second = site.edges["spark1"], site.edges["spark2"]
        first.wait_for("other", "DOWN")
        second.wait_for("spare", "DOWN")
        site.wait("spark1", site_3__at_spark2="DOWN")
        writer(first, monkeypatch)("loading")
        assert code(ask(first)) == "model_loading"
        writer(second, monkeypatch)("loading", "spare")
        assert code(ask(second, "spare-model")) == "model_loading"
        away = ask(first, "spare-model")
        assert (away.status, away.error["code"], away.headers["retry-after"]) == (503, "model_not_active", "10")
        assert away.error["message"].partition(f"{COMMAND} ")[2] == "status.yml"
    finally:
        site.close()


def test_the_unit_makes_the_file_of_states_before_haproxy_reads_it(
    edge: RunningEdge, write: Write, tmp_path: Path
) -> None:
    write("loading")
    Path(edge.files.states).unlink()
    write_map(Places(edge.files.sockets, config=str(tmp_path / "etc"), wants=str(tmp_path / "wants")))
    restart(edge)
    assert code(ask(edge)) == "model_loading"
