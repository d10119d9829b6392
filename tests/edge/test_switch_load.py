"""A switch in the middle of load: a client asks for every model all the time, while a route moves to another one."""

from __future__ import annotations

import threading
from collections import Counter
from http.client import HTTPException
from pathlib import Path

import pytest

from conftest import Start
from fakes.edge_cases import DEMO, SPARE, THIRD
from fakes.running_edge import Engines, RunningEdge
from fakes.running_site import RunningSite
from fakes.running_switch import RunningSwitch, allow
from fakes.scripted_engine import Event, ScriptedEngine, Stream
from waiting import until

CHAT = "/v1/chat/completions"
# What a request may get while its model does not run. The last three are of the 2 s until the checks of an edge have
# found that its own engine has ended.
REFUSED = {
    *("503 model_not_active", "503 model_starting", "503 model_waiting"),
    *("503 nothing_started", "503 engine_unavailable", "503 model_loading"),
}


class Load:
    """A client that asks for models in turn, all the time."""

    def __init__(self, edge: RunningEdge, models: tuple[str, ...]) -> None:
        self.edge = edge
        self.models = models
        self.ended = threading.Event()
        self.seen: dict[str, Counter[str]] = {model: Counter() for model in models}
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self.thread.start()
        return self

    def summary(self) -> str:
        return str({model: dict(counts) for model, counts in self.seen.items()})

    def check(self) -> None:
        """Fail for an answer of another model, a stream that was cut, and an error of another kind."""
        assert {kind for counts in self.seen.values() for kind in counts} <= {"200", *REFUSED}

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.ended.is_set():
            for model in self.models:
                self.seen[model][self._ask(model)] += 1

    def _ask(self, model: str) -> str:
        try:
            answer = self.edge.ask("POST", CHAT, {"messages": [], "model": model})
        except (OSError, HTTPException):
            return "no answer"
        if answer.status != 200:
            return f"{answer.status} {answer.error['code']}"
        if not answer.body.endswith(b"data: [DONE]\n\n"):
            return "cut"
        return "200" if f'"content": "from {model} '.encode() in answer.body else "wrong model"


def named(model: str) -> ScriptedEngine:
    """Return an engine whose tokens name its model, in streams of 50 ms."""
    return ScriptedEngine([Stream([Event(0.01 * number, content=f"from {model} ") for number in range(1, 6)])])


@pytest.mark.parametrize("by", ["a request", "vllm-switch"])
def test_a_switch_in_the_middle_of_load(
    by: str, start: Start, tmp_path: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = {"switch_by_request": True} if by == "a request" else {}
    edge = start(limits={"requests_per_minute": 100000}, **requests)
    engine.streams = named("model").streams
    other, engines = named("other-model"), Engines(tmp_path / "run")
    switch = RunningSwitch(edge) if requests else None
    try:
        with Load(edge, ("model", "other-model")) as load:
            until(lambda: load.seen["model"]["200"] > 20)
            if switch:
                allow(edge)
                assert switch.wait_for_call(1) == "other"
            # vllm-switch stops the old engine, and starts the new one.
            (tmp_path / "run" / "demo" / "api.sock").unlink()
            edge.wait_for("demo", "DOWN")
            engines.start("other", other)
            edge.wait_for("other", "UP")
            if switch:
                switch.end("other")
                # Nothing starts the first one again before the load ends: the model stays a while.
            before = load.seen["other-model"]["200"]
            until(lambda: load.seen["other-model"]["200"] > before + 20)
        with capsys.disabled():
            print(f"\na switch by {by} in the middle of load: {load.summary()}")
        load.check()
        if switch:
            assert switch.calls() == ["other"]
    finally:
        if switch:
            switch.close()
        engines.close()


def test_a_switch_of_one_spark_of_a_site_in_the_middle_of_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second Spark has `t` and gets `spare-model` by a request at the first one, which serves `model`."""
    deployments = [DEMO, {**THIRD, "hosts": ["spark2"]}, {**SPARE, "active": False}]
    members = {"spark1": "192.168.1.20", "spark2": "192.168.1.21"}
    settings = {"switch_by_request": True, "site": members, "limits": {"requests_per_minute": 100000}}
    site = RunningSite(tmp_path, deployments, settings, hosts=("spark1", "spark2"))
    for name, model in (("demo", "model"), ("third", "t")):
        site.engines[name].streams = named(model).streams
    site.start()
    first, second = site.edges["spark1"], site.edges["spark2"]
    switch = RunningSwitch(second)
    try:
        # Names in their order: model, spare-model, t and third-1.5. The first one has no other Spark.
        site.wait("spark1", site_2__at_spark2="DOWN", site_3__at_spark2="UP")
        with Load(first, ("model", "t", "spare-model")) as load:
            until(lambda: load.seen["t"]["200"] > 20)
            allow(first)
            assert switch.wait_for_call(1) == "spare"
            site.running["spark2"].stop("third")
            site.wait("spark1", site_3__at_spark2="DOWN")
            site.running["spark2"].start("spare", named("spare-model"))
            site.wait("spark1", site_2__at_spark2="UP")
            switch.end("spare")
            before = load.seen["spare-model"]["200"]
            until(lambda: load.seen["spare-model"]["200"] > before + 20)
        with capsys.disabled():
            print(f"\na switch of one of two Sparks in the middle of load: {load.summary()}")
        load.check()
        # The model of the other Spark is not concerned.
        assert set(load.seen["model"]) == {"200"}
        assert switch.calls() == ["spare"]
    finally:
        switch.close()
        site.close()
