"""A request for an inactive model starts the switch: a real HAProxy, the real program, and a scripted vllm-switch."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import Start
from fakes.edge_cases import DEMO, OTHER
from fakes.running_edge import KEY, Answer, RunningEdge
from fakes.running_site import RunningSite
from fakes.running_switch import BOB, RunningSwitch, allow
from fakes.scripted_engine import ScriptedEngine
from vllm_spark.core import paths
from vllm_spark.node import host_layout
from waiting import LIMIT_S, until

CHAT = "/v1/chat/completions"
Both = tuple[RunningEdge, RunningSwitch]
StartBoth = Callable[..., Both]


def ask(edge: RunningEdge, model: str = "other-model", key: str = KEY, **headers: str) -> Answer:
    return edge.ask("POST", CHAT, {"messages": [{"role": "user", "content": "SECRET"}], "model": model}, key, headers)


@pytest.fixture
def start_both(start: Start) -> Iterator[StartBoth]:
    """A function that starts an edge with its program. Ada may start models, and bob may not."""
    running: list[RunningSwitch] = []

    def _start(limits: dict[str, Any] | None = None, **more: Any) -> Both:
        edge = start(switch_by_request=True, limits={"requests_per_minute": 100000, **(limits or {})})
        allow(edge)
        running.append(RunningSwitch(edge, **more))
        return edge, running[-1]

    yield _start
    for one in running:
        one.close()


def test_a_request_of_a_person_with_the_right_starts_the_switch_once(
    start_both: StartBoth, engine: ScriptedEngine
) -> None:
    edge, switch = start_both()
    answers = [ask(edge), ask(edge, "o/1"), ask(edge)]
    assert [(answer.status, answer.error["code"]) for answer in answers] == [(503, "model_starting")] * 3
    assert answers[0].error["message"] == "other-model is being started: ask again."
    assert answers[0].headers["retry-after"] == "10"
    assert switch.wait_for_call(1) == "other"
    switch.end("other")
    # What runs and what a person without the right asks for is as before.
    assert ask(edge, "model").status == 200
    assert ask(edge, "model", BOB).status == 200
    assert switch.calls() == ["other"]
    assert "ada asked for other-model of other: 503 model_starting" in switch.journal.read_text()
    assert [request["model"] for request in engine.requests] == ["model", "model"]


def test_a_person_without_the_right_gets_the_503_with_the_reason(start_both: StartBoth) -> None:
    edge, switch = start_both()
    answer = ask(edge, key=BOB, **{"x-vllm-edge-who": "ada", "x-vllm-edge-switch": "other"})
    assert (answer.status, answer.error["code"]) == (503, "model_not_active")
    assert answer.error["message"] == (
        "other-model is not active: this Spark serves model. This key may not start it. Its owner changes that with: "
        "ansible-playbook switch.yml -e to=other"
    )
    # The right comes and goes without a restart.
    allow(edge, ada=False)
    assert ask(edge).error["code"] == "model_not_active"
    assert (switch.calls(), switch.journal.read_text()) == ([], "")
    allow(edge)
    assert ask(edge).error["code"] == "model_starting"


def test_without_the_setting_the_right_has_no_effect(start: Start) -> None:
    edge = start()
    allow(edge)
    answer = ask(edge)
    assert answer.error["message"].startswith("other-model is not active: this Spark serves model. Its owner changes")
    assert "edge_switch" not in edge.text


def test_the_time_of_the_last_start_is_named(start_both: StartBoth) -> None:
    edge, switch = start_both({"switch_stay_s": 0})
    ask(edge)
    switch.wait_for_call(1)
    time.sleep(2)
    switch.end("other")
    assert ask(edge).error["message"] == "other-model has just been started: ask again."
    edge.admin_route("disable server demo/engine")
    assert ask(edge, "model").error["code"] == "model_starting"
    assert switch.wait_for_call(2) == "demo"
    switch.end("demo")
    answer = ask(edge)
    assert answer.error["message"].startswith("other-model is being started; it serves in about ")
    assert 1 <= int(answer.headers["retry-after"]) < 60


def test_the_queue_is_bounded_and_one_switch_runs_at_a_time(start_both: StartBoth) -> None:
    edge, switch = start_both({"switches_waiting": 0, "switch_stay_s": 0})
    edge.admin_route("disable server demo/engine")
    assert ask(edge).error["code"] == "model_starting"
    switch.wait_for_call(1)
    full = ask(edge, "model")
    assert (full.status, full.error["code"], full.error["type"]) == (429, "switch_queue_full", "rate_limit_error")
    assert full.error["message"] == "model cannot wait: other came first, and 0 may wait."
    assert int(full.headers["retry-after"]) > 0
    switch.end("other")
    assert ask(edge, "model").error["code"] == "model_starting"
    assert switch.wait_for_call(2) == "demo"


def test_a_failed_switch_is_named_and_not_tried_again_at_once(start_both: StartBoth) -> None:
    edge, switch = start_both()
    ask(edge)
    switch.wait_for_call(1)
    switch.end("other", 1, "other does not serve: no token in 900 s. demo, which ran before, serves again.")
    answers = [ask(edge) for _ in range(20)]
    assert {(answer.status, answer.error["code"]) for answer in answers} == {(503, "switch_failed")}
    assert (
        answers[0]
        .error["message"]
        .startswith(
            "other-model could not be started: other does not serve: no token in 900 s. demo, which ran before, serves "
            "again. The next attempt is possible in "
        )
    )
    assert 50 < int(answers[-1].headers["retry-after"]) <= 60
    assert switch.calls() == ["other"]
    # The engine that runs is not affected.
    assert ask(edge, "model").status == 200


def test_nothing_is_started_while_an_operator_holds_the_spark(start_both: StartBoth) -> None:
    edge, switch = start_both()
    switch.lock.write_text("{}")
    answer = ask(edge)
    assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (503, "spark_held", "60")
    switch.lock.unlink()
    (switch.folder / "other" / "launch").unlink()
    assert ask(edge).error["message"].endswith("vllm-spark switch -e to=other")
    assert switch.calls() == []


def test_a_large_body_does_not_cost_the_answer(start_both: StartBoth) -> None:
    edge, switch = start_both()
    body = {"messages": [{"role": "user", "content": "x" * (15 << 20)}], "model": "other-model"}
    before = switch.memory_kib()
    codes = {edge.ask("POST", CHAT, body).error["code"] for _ in range(5)}
    connection = edge.connect()
    content = json.dumps(body).encode()
    connection.request("POST", CHAT, iter([content]), {"Authorization": f"Bearer {KEY}"}, encode_chunked=True)
    response = connection.getresponse()
    assert json.loads(response.read())["error"]["code"] == "model_starting"
    connection.close()
    assert codes == {"model_starting"}
    # It keeps nothing of 90 MiB.
    assert switch.memory_kib() < before + 16 * 1024


HOSTILE: list[Any] = [
    "../demo",
    "other;reboot",
    "-h",
    "",
    "x" * 1000,
    ["other"],
    {"other": 1},
    None,
    1,
    True,
]
# The edge itself refuses these.
UNREADABLE = ("other\n", "x" * 5000)


def test_a_hostile_name_reaches_nothing(start_both: StartBoth, engine: ScriptedEngine) -> None:
    edge, switch = start_both()
    forged = {"x-vllm-edge-who": "owner", "x-vllm-edge-switch": "other", "X-vLLM-Edge-Model": "other-model"}
    for name in HOSTILE:
        answer = edge.ask("POST", CHAT, {"messages": [], "model": name}, headers=forged)
        # The engine that runs answers for itself, as for every name that no deployment has.
        assert answer.status == 200, name
    for name in UNREADABLE:
        assert edge.ask("POST", CHAT, {"model": name}, headers=forged).error["code"] == "invalid_model"
    assert len(engine.requests) == len(HOSTILE)
    # Without an engine the edge answers.
    edge.admin_route("disable server demo/engine")
    assert edge.ask("POST", CHAT, {"messages": [], "model": "../demo"}, headers=forged).status == 503
    assert (switch.calls(), switch.journal.read_text()) == ([], "")


def raw(path: Path, headers: str) -> bytes:
    """Return what the program answers to a request that does not come from the edge."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\n{headers}\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize(
    "headers",
    [
        "x-vllm-edge-switch: ../other\r\nx-vllm-edge-model: other-model",
        "x-vllm-edge-switch: other\r\nx-vllm-edge-model: model",
        "x-vllm-edge-switch: -h\r\nx-vllm-edge-model: -h",
        "x-vllm-edge-model: other-model",
        "a: b",
    ],
)
def test_the_program_itself_starts_only_what_the_plan_lists(start_both: StartBoth, headers: str) -> None:
    _, switch = start_both()
    assert raw(switch.socket, headers).startswith(b"HTTP/1.0 404 ")
    assert (switch.calls(), switch.journal.read_text()) == ([], "")


# The program of this test belongs to root, so it starts as root and becomes the other user.
CONNECT = """
import os, socket, sys
user, group, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
client = socket.socket(socket.AF_UNIX)
os.setgroups([])
os.setgid(group)
os.setuid(user)
client.connect(path)
"""


def connects_as(user: int, group: int, path: Path) -> str:
    """Return the error of a process that connects to a socket, empty if it does."""
    argv = [sys.executable, "-I", "-c", CONNECT, str(user), str(group), str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_only_the_group_of_the_edge_reaches_the_socket(tmp_path: Path) -> None:
    edge_group, nobody = 54321, 65534
    # Nobody, the user of an engine, and the user of the edge: each with its group.
    clients = [(nobody, nobody), (host_layout.ENGINE_USER, host_layout.ENGINE_USER), (nobody, edge_group)]
    unit = (paths.TEMPLATES / host_layout.EDGE_SWITCH_UNIT).read_text()
    umask, mode = (
        int(re.findall(f"^{key}=(\\d+)$", unit, re.MULTILINE)[0], 8) for key in ("UMask", "RuntimeDirectoryMode")
    )
    listed = {"deployments": {}, "pairs": [], "active_states": [], "waiting": 0, "stay_s": 0}
    (tmp_path / "list").write_text(json.dumps(listed))
    # Every user reaches /tmp, and none the folder of a test. systemd makes the runtime folder like this one.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, 0, edge_group)
        os.chmod(folder, mode)
        path = Path(folder) / "switch.sock"
        argv = [sys.executable, "-I", "-B", str(paths.NODE / "edge_switch.py"), "--list", str(tmp_path / "list")]
        program = subprocess.Popen([*argv, "--socket", str(path)], umask=umask, group=edge_group)
        try:
            until(path.exists)
            tried = {client: connects_as(*client, path) for client in clients}
        finally:
            program.terminate()
            program.wait(LIMIT_S)
    refused = "PermissionError: [Errno 13] Permission denied"
    assert list(tried.values()) == [refused, refused, ""]


def test_without_the_program_the_edge_says_so(start_both: StartBoth) -> None:
    edge, switch = start_both()
    switch.close()
    answer = ask(edge)
    assert (answer.status, answer.error["code"]) == (503, "no_switch")
    assert ask(edge, "model").status == 200


def test_many_requests_at_once_are_one_switch(start_both: StartBoth) -> None:
    edge, switch = start_both()
    edge.show_key()
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: ask(edge), range(200)))
    seen = Counter((answer.status, answer.error["code"]) for answer in answers)
    # Ada may have 32 requests at the same time.
    assert set(seen) <= {(503, "model_starting"), (429, "rate_limit_exceeded")}
    assert seen[503, "model_starting"] > 100
    assert switch.calls() == ["other"]


def test_a_spark_of_the_site_starts_a_model_of_another_one(tmp_path: Path) -> None:
    deployments = [DEMO, {**OTHER, "name": "far", "hosts": ["spark2"]}, {**DEMO, "name": "near", "hosts": ["spark2"]}]
    settings = {"switch_by_request": True, "site": {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}}
    site = RunningSite(tmp_path, deployments, settings, hosts=("spark1", "spark2"))
    site.start()
    switch = RunningSwitch(site.edges["spark2"])
    try:
        first, second = site.edges["spark1"], site.edges["spark2"]
        site.wait("spark1", site_1__at_spark2="UP", site_2__at_spark2="DOWN")
        answer = ask(first)
        assert (answer.status, answer.error["code"]) == (503, "model_not_active")
        allow(first)
        answer = ask(first, "o/1", **{"x-vllm-edge-switch": "near"})
        assert (answer.status, answer.error["code"]) == (503, "model_starting")
        assert answer.error["message"] == "o/1 is being started: ask again."
        assert not any("vllm-edge" in name for name in answer.headers)
        assert switch.wait_for_call(1) == "far"
        assert "ada asked for o/1 of far" in switch.journal.read_text()
        # On the other Spark ada has no such right, and a client cannot claim it.
        assert ask(second, **{"x-vllm-edge-switch": "far"}).error["code"] == "model_not_active"
        # The answer of the program does not put the other Spark down.
        assert ask(first, "model").status == 200
        switch.close()
        assert ask(first).error["code"] == "no_switch"
        site.kill("spark2")
        assert ask(first).error["code"] == "no_switch"
    finally:
        switch.close()
        site.close()
