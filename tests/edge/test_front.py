"""A Spark without a deployment as the front of a site: its edge forwards to the Sparks that have the models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attacks
import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target
from test_streams import arrivals, open_stream

from conftest import EVENTS
from fakes.edge_cases import OTHER, REPLICA, SPARE, THIRD
from fakes.running_edge import KEY, Answer, RunningEdge
from fakes.running_site import ADDRESSES, RunningSite
from fakes.running_switch import BOB, RunningSwitch, allow
from fakes.scripted_engine import Stream
from vllm_spark.edge import config
from vllm_spark.verify.edge_target import EdgeTarget
from vllm_spark.verify.gates import edge as gate

CHAT = "/v1/chat/completions"
# The first Spark has none of them.
DEPLOYMENTS = [REPLICA, {**SPARE, "active": False}, THIRD]
StartSite = Callable[..., RunningSite]


@pytest.fixture
def start_site(tmp_path: Path) -> Iterator[StartSite]:
    """A function that starts a site and waits until its front knows what the others serve."""
    running: list[RunningSite] = []

    def _start(deployments: Any = DEPLOYMENTS, /, **settings: Any) -> RunningSite:
        site = RunningSite(tmp_path, deployments, settings)
        running.append(site)
        site.start()
        # Own deployments have no route between the Sparks, and a number of their own.
        more = len(deployments) - len(DEPLOYMENTS)
        states = {"site_1__at_spark2": "UP", f"site_{2 + more}__at_spark2": "DOWN", f"site_{3 + more}__at_spark3": "UP"}
        site.wait("spark1", **states)
        return site

    yield _start
    for site in running:
        site.close()


def ask(edge: RunningEdge, model: str, key: str = KEY) -> Answer:
    return edge.ask("POST", CHAT, {"messages": [], "model": model}, key)


def test_it_forwards_each_model_and_says_who_asks(start_site: StartSite) -> None:
    site = start_site()
    first = site.edges["spark1"]
    assert [ask(first, name).status for name in ("model", "t", "third-1.5")] == [200] * 3
    assert {name: len(engine.requests) for name, engine in site.engines.items()} == {"replica": 1, "third": 2}
    listed = json.loads(first.ask("GET", "/v1/models").body)["data"]
    assert [model["id"] for model in listed] == ["model", "t", "third-1.5"]
    line = site.edges["spark2"].logged("via=")
    assert "via=spark1 who=ada model=model path=/v1/chat/completions status=200" in line


def test_keys_are_its_own_and_what_does_not_run_is_a_503(start_site: StartSite) -> None:
    site = start_site()
    first = site.edges["spark1"]
    assert ask(first, "model", "sk-of-nobody").status == 401
    answer = ask(first, "spare-model")
    assert (answer.status, answer.error["code"]) == (503, "model_not_active")
    assert answer.error["message"].startswith("spare-model is not active: this site serves model, third-1.5.")
    unknown = ask(first, "an-adapter")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    site.kill("spark2")
    site.kill("spark3")
    site.wait("spark1", site_1__at_spark2="DOWN", site_3__at_spark3="DOWN")
    assert ask(first, "model").error["code"] == "model_not_active"
    assert ask(first, "an-adapter").error["code"] == "nothing_started"
    assert first.ask("GET", "/health", key=None).status == 200


def test_no_other_edge_asks_it(start_site: StartSite) -> None:
    site = start_site()
    target = Target(ADDRESSES["spark1"], site.port, True, ADDRESSES["spark1"], str(site.folder / "spark1" / "ca.crt"))
    # Nothing listens there.
    assert "error" in spark_edge_probe.uninvited(target)
    # A Spark that serves listens for the front, and cuts a client without a certificate.
    assert spark_edge_probe.uninvited(target._replace(address=ADDRESSES["spark2"])) == {"status": 0}


def test_it_holds_the_gate_and_withstands_attacks(start_site: StartSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CLIENT_SILENCE_S", attacks.SILENCE_S)
    site = start_site(limits=attacks.SMALL)
    edge = site.edges["spark1"]
    asked = EdgeTarget.of_edge(edge.planned)
    target = Target(edge.address, edge.port, True, "127.0.0.1", "")
    seen = spark_edge_probe.outside(target, gate.UNLISTED)
    inside = {**seen, "tls": True}
    holder = {"unit": "vllm-edge.service"}
    certificates = spark_edge_probe.shown(target._replace(name="localhost"))
    observed = {
        "inside": {**inside, "shown": certificates, "placed": certificates, "holder": holder},
        "outside": seen,
    }
    verdicts = list(gate.verdicts(asked, observed))
    assert [str(verdict) for verdict in verdicts if not verdict.ok] == []
    assert len(verdicts) == 8
    assert attacks.broken(edge) == {}
    assert [engine.heads for engine in site.engines.values()] == [[], []]


def test_events_arrive_one_by_one(start_site: StartSite, capsys: pytest.CaptureFixture[str]) -> None:
    site = start_site()
    site.engines["third"].streams = [Stream(EVENTS)]
    body = json.dumps({"model": "t", "messages": [], "stream": True}).encode()
    moments = arrivals(open_stream(site.edges["spark1"], body=body))
    gaps = [round(1000 * (later - earlier)) for earlier, later in pairwise(moments)]
    with capsys.disabled():
        print(f"\nevents that are 50 ms apart, through a front: {gaps}")
    assert len(moments) == len(EVENTS)


def test_a_request_at_the_front_starts_a_model_of_another_spark(start_site: StartSite) -> None:
    site = start_site(switch_by_request=True)
    first = site.edges["spark1"]
    switch = RunningSwitch(site.edges["spark2"])
    try:
        allow(first)
        assert ask(first, "spare-model", BOB).error["code"] == "model_not_active"
        assert ask(first, "spare-model").error["message"] == "spare-model is being started: ask again."
        assert switch.wait_for_call(1) == "spare"
    finally:
        switch.close()


def test_a_spark_whose_deployments_are_inactive_is_a_front_too(start_site: StartSite) -> None:
    site = start_site([OTHER, *DEPLOYMENTS])
    first = site.edges["spark1"]
    assert ask(first, "model").status == 200
    answer = ask(first, "o/1")
    assert answer.error["message"].endswith("ansible-playbook switch.yml -e to=other")
