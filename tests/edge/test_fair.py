"""Keys of the class batch at a real edge: what the engine reads, the share, the queue, and the quota of a day."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import EVENTS, Start
from fakes.edge_cases import DEMO, THIRD
from fakes.running_edge import KEY, Answer, RunningEdge
from fakes.running_site import RunningSite
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from vllm_spark.edge import config
from vllm_spark.node import edge_admin
from waiting import until

CI = "sk-of-ci"
CHAT = "/v1/chat/completions"
PRIORITY = "x-vllm-priority"
# The recipe leaves max-num-seqs to the engine, which has 256: one percent of them are two requests.
SHARE = 2
LIMITS = {"batch_share": 1, "batch_waiting": 3, "requests_per_minute": 100_000}
SPELLINGS = ("X-Vllm-Priority", "x-vllm-priority", "X-VLLM-PRIORITY")


def add_batch_key(edge: RunningEdge, entry: str = "ci//batch") -> None:
    edge.admin(f"add map {edge.files.keys} {hashlib.sha256(CI.encode()).hexdigest()} {entry}")


def ask(edge: RunningEdge, key: str = CI, model: str = "model") -> Answer:
    return edge.ask("POST", CHAT, {"messages": [], "model": model, "stream": True}, key)


def code(answer: Answer) -> str:
    """Return the code of an error, empty for a whole stream."""
    if answer.status == 200:
        assert answer.body.endswith(b"data: [DONE]\n\n")
        return ""
    return f"{answer.status} {answer.error['code']}"


def priorities(engine: ScriptedEngine) -> list[str]:
    """Return the values of the class header of the last request, as the engine reads them."""
    lines = [line.lower().partition(":") for line in engine.heads[-1].splitlines()]
    return [value.strip() for name, _, value in lines if name == PRIORITY]


@pytest.fixture
def fair(start: Start, engine: ScriptedEngine) -> RunningEdge:
    engine.streams = [Stream([Event(0.0, content="word ")])]
    edge = start(fair=True, limits=LIMITS)
    add_batch_key(edge)
    return edge


@contextmanager
def held(edge: RunningEdge, engine: ScriptedEngine, number: int, waiting: int = 0) -> Iterator[list[Any]]:
    """Hold so many batch requests at the engine or in the queue, and let them end afterwards."""
    engine.turns = threading.Semaphore(0)
    with ThreadPoolExecutor(number) as pool:
        answers = [pool.submit(ask, edge) for _ in range(number)]
        try:
            until(lambda: queued(edge) == waiting and len(engine.requests) == number - waiting)
            yield answers
        finally:
            engine.turns.release(number * len(EVENTS))


def queued(edge: RunningEdge) -> int:
    """Return how many batch requests wait for the share."""
    rows = [line.split(",") for line in edge.admin_route("show stat").splitlines()]
    return next(int(row[2]) for row in rows if row[:2] == ["batch_demo", "BACKEND"])


@pytest.mark.parametrize("key", [KEY, CI])
def test_only_the_edge_says_the_class_of_a_request(fair: RunningEdge, engine: ScriptedEngine, key: str) -> None:
    expected = ["0" if key == KEY else str(config.BATCH_PRIORITY)]
    connection = fair.connect()
    connection.putrequest("POST", CHAT)
    body = b'{"model": "model", "messages": [], "priority": -999}'
    headers = [("Authorization", f"Bearer {key}"), ("Content-Length", str(len(body)))]
    for name, value in [*headers, *((name, value) for name in SPELLINGS for value in ("-999", "0", "10", "x"))]:
        connection.putheader(name, value)
    connection.endheaders(body)
    assert connection.getresponse().status == 200
    connection.close()
    assert priorities(engine) == expected


@pytest.mark.parametrize("settings", [{}, {"fair": True}])
def test_the_class_reaches_the_engine_with_and_without_a_share(
    start: Start, engine: ScriptedEngine, settings: dict[str, Any]
) -> None:
    edge = start(**settings)
    add_batch_key(edge)
    assert (code(ask(edge)), priorities(engine)) == ("", [str(config.BATCH_PRIORITY)])
    assert (code(ask(edge, KEY)), priorities(engine)) == ("", ["0"])


def test_batch_waits_for_its_share_while_persons_pass(fair: RunningEdge, engine: ScriptedEngine) -> None:
    most = SHARE + LIMITS["batch_waiting"]
    with held(fair, engine, most, waiting=LIMITS["batch_waiting"]) as answers:
        refused = ask(fair)
        assert (code(refused), refused.headers["retry-after"]) == ("429 batch_queue_full", "30")
        assert engine.turns is not None
        engine.turns.release()
        # Either this one or one of those that run ends by the one turn: a person does not wait for batch.
        with ThreadPoolExecutor() as pool:
            person = pool.submit(ask, fair, KEY)
            until(lambda: any("priority: 0" in head.lower() for head in engine.heads))
            engine.turns.release(most)
            assert code(person.result()) == ""
    assert [code(one.result()) for one in answers] == [""] * most
    assert len(engine.requests) == most + 1
    assert code(ask(fair)) == ""


def test_a_key_of_the_class_batch_lists_models_while_its_share_is_full(
    fair: RunningEdge, engine: ScriptedEngine
) -> None:
    with held(fair, engine, SHARE):
        assert fair.ask("GET", "/v1/models", key=CI).status == 200


def test_who_waits_too_long_is_told_to_come_back(start: Start, engine: ScriptedEngine) -> None:
    edge = start(fair=True, limits={**LIMITS, "batch_wait_s": 1})
    add_batch_key(edge)
    with held(edge, engine, SHARE):
        began = time.monotonic()
        answer = ask(edge)
        assert time.monotonic() - began >= 1
        assert (code(answer), answer.headers["retry-after"]) == ("429 batch_queue_full", "30")
        assert not any("edge" in name for name in answer.headers)
        assert " who=ci model=model path=/v1/chat/completions status=429 " in edge.logged("who=ci")


def test_without_a_queue_only_the_share_is_served(start: Start, engine: ScriptedEngine) -> None:
    edge = start(fair=True, limits={**LIMITS, "batch_waiting": 0})
    add_batch_key(edge)
    with held(edge, engine, SHARE) as answers:
        assert code(ask(edge)) == "429 batch_queue_full"
    assert [code(one.result()) for one in answers] == [""] * SHARE


def test_an_error_of_the_engine_stays_one(fair: RunningEdge, engine: ScriptedEngine) -> None:
    engine.streams = [Stream(status=503, body='{"error": {"code": "busy"}}')]
    answer = ask(fair)
    assert (answer.status, answer.body) == (503, b'{"error": {"code": "busy"}}')


def test_a_switch_holds_batch_back_too_and_counts_it(
    fair: RunningEdge, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_admin, "ROUTE_SOCKET", fair.files.route_admin_socket)
    with held(fair, engine, SHARE):
        assert edge_admin.requests_at("demo") == SHARE
        assert edge_admin.hold_back("demo")
        assert code(ask(fair)) == "503 model_not_active"
    until(lambda: edge_admin.requests_at("demo") == 0)
    assert edge_admin.let_in("demo")
    assert code(ask(fair)) == ""


def test_the_class_crosses_a_site(tmp_path: Path) -> None:
    members = {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}
    deployments = [DEMO, {**THIRD, "hosts": ["spark2"]}]
    settings = {"site": members, "fair": True, "limits": LIMITS}
    site = RunningSite(tmp_path, deployments, settings, hosts=("spark1", "spark2"))
    site.start()
    first, third = site.edges["spark1"], site.engines["third"]
    try:
        add_batch_key(first)
        until(lambda: ask(first, model="t").status == 200)
        assert priorities(third) == [str(config.BATCH_PRIORITY)]
        assert code(ask(first, KEY, "t")) == ""
        assert priorities(third) == ["0"]
        for name in SPELLINGS:
            forged = {"Content-Type": "application/json", name: "-999"}
            assert first.ask("POST", CHAT, {"messages": [], "model": "t"}, headers=forged).status == 200
            assert priorities(third) == ["0"]
        # The Spark with the engine has the share, whoever asks.
        third.turns = threading.Semaphore(0)
        number = SHARE + LIMITS["batch_waiting"]
        before = len(third.requests)
        with ThreadPoolExecutor(number + 1) as pool:
            answers = [pool.submit(ask, first, CI, "t") for _ in range(number)]
            until(lambda: len(third.requests) == before + SHARE)
            refused = [pool.submit(ask, first, CI, "t") for _ in range(1)]
            until(lambda: any(one.done() for one in (*answers, *refused)))
            third.turns.release(number)
            codes = sorted(code(one.result()) for one in (*answers, *refused))
        assert codes == [*[""] * number, "429 batch_queue_full"]
    finally:
        site.close()


@pytest.mark.parametrize(("ends_in_s", "refused"), [(3600, True), (-1, False)])
def test_who_has_used_its_tokens_of_today_waits_until_midnight(start: Start, ends_in_s: int, refused: bool) -> None:
    edge = start()
    spent = edge.files.spent
    edge.admin(f"add map {spent} ada {int(time.time()) + ends_in_s}")
    answer = ask(edge, KEY)
    assert (code(answer) == "429 quota_exceeded") == refused
    if refused:
        assert 3590 <= int(answer.headers["retry-after"]) <= 3600
    assert edge.ask("GET", "/v1/models").status == 200
    add_batch_key(edge)
    assert code(ask(edge)) == ""
