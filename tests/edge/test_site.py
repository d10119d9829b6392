"""One address for the models of several Sparks: real edges that ask each other over TLS, and scripted engines."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge, spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target
from test_streams import arrivals, events, open_stream, release

from conftest import EVENTS
from fakes.edge_cases import DEMO, OTHER, REPLICA, SPARE, THIRD
from fakes.running_edge import HASH, KEY, Answer, RunningEdge
from fakes.running_site import ADDRESSES, SHORT, RunningSite
from fakes.scripted_engine import Event, Stream
from vllm_spark.edge import authority
from waiting import LIMIT_S, until

CHAT = "/v1/chat/completions"
# `model` is on the first two Sparks, `third-1.5` (alias `t`) on the third; the others do not run.
DEPLOYMENTS = [DEMO, OTHER, REPLICA, {**SPARE, "active": False}, THIRD]
StartSite = Callable[..., RunningSite]


@pytest.fixture
def start_site(tmp_path: Path) -> Iterator[StartSite]:
    """A function that starts a site and waits until its first edge knows what the others serve."""
    running: list[RunningSite] = []

    def _start(**more: Any) -> RunningSite:
        site = RunningSite(tmp_path, DEPLOYMENTS, **more)
        running.append(site)
        site.start()
        site.wait("spark1", site_1__demo="UP", site_1__at_spark2="UP", site_3__at_spark2="DOWN")
        if "spark3" in site.hosts:
            site.wait("spark1", site_4__at_spark3="UP")
        return site

    yield _start
    for site in running:
        site.close()


def ask(edge: RunningEdge, model: str, **headers: str) -> Answer:
    return edge.ask("POST", CHAT, {"messages": [], "model": model}, headers=headers)


def requests(site: RunningSite) -> dict[str, int]:
    """Return how many requests each engine got."""
    return {name: len(engine.requests) for name, engine in site.engines.items() if engine.requests}


def test_a_request_goes_to_the_spark_of_its_model_and_both_logs_say_who(start_site: StartSite) -> None:
    site = start_site()
    first, third = site.edges["spark1"], site.edges["spark3"]
    site.engines["third"].streams = [Stream(usage={"prompt_tokens": 12, "completion_tokens": 34})]
    forged = {"X-vLLM-Edge-Who": "owner", "x-vllm-edge-model": "model", "Cookie": "a=b"}
    assert [ask(first, name, **forged).status for name in ("t", "third-1.5")] == [200, 200]
    assert requests(site) == {"third": 2}
    # The engine gets nothing of the way between the edges, and no key.
    head = site.engines["third"].heads[-1].lower()
    assert "\r\nhost: engine\r\n" in head
    assert all(word not in head for word in ("vllm-edge", "authorization", "cookie", KEY))
    asked, forwarded = first.logged("to=site_4"), third.logged("via=")
    assert "who=ada model=t path=/v1/chat/completions to=site_4/at.spark3 status=200" in asked
    assert "via=spark1 who=ada model=t path=/v1/chat/completions status=200" in forwarded
    # Who adds up the logs of all Sparks counts nothing twice.
    assert " in_tokens=12 out_tokens=34 events=2 " in asked
    assert "tokens=" not in forwarded


def test_the_list_of_models_is_that_of_the_site(start_site: StartSite) -> None:
    site = start_site()
    site.wait("spark3", site_1__at_spark1="UP", site_2__at_spark1="DOWN", site_3__at_spark2="DOWN")
    for edge in (site.edges["spark1"], site.edges["spark3"]):
        answer = edge.ask("GET", "/v1/models")
        document = json.loads(answer.body)
        assert document["object"] == "list"
        assert [model["id"] for model in document["data"]] == ["model", "t", "third-1.5"]
        assert edge.ask("GET", "/v1/models", key=None).status == 401
    assert [len(engine.heads) for engine in site.engines.values()] == [0, 0, 0]


def test_what_does_not_run_is_a_503_of_the_whole_site_and_an_unknown_model_a_404(start_site: StartSite) -> None:
    site = start_site()
    first, second = site.edges["spark1"], site.edges["spark2"]
    # This Spark knows that it could start its own model, and nothing of one of another Spark.
    for name, says in (
        ("o/1", "Its owner changes that with: ansible-playbook switch.yml -e to=other"),
        (
            "spare-model",
            "On spark2 it is not started, still loads, or cannot be reached. Its owner sees which with: "
            "ansible-playbook status.yml",
        ),
    ):
        answer = ask(first, name)
        assert (answer.status, answer.error["code"]) == (503, "model_not_active")
        assert answer.error["message"] == f"{name} is not active: this site serves model, third-1.5. {says}"
    # The engine of the edge's own Spark answers for an unknown name, such as an adapter; without one the edge does.
    assert ask(first, "an-adapter").status == 200
    assert requests(site) == {"demo": 1}
    site.running["spark2"].stop("replica")
    second.wait_for("replica", "DOWN")
    answer = ask(second, "an-adapter")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert answer.error["message"] == "No deployment has this model: this site serves model, third-1.5."
    assert requests(site) == {"demo": 1}


def test_streams_of_one_name_are_balanced(start_site: StartSite, capsys: pytest.CaptureFixture[str]) -> None:
    site = start_site(hosts=("spark1", "spark2"))
    for engine in site.engines.values():
        engine.turns = threading.Semaphore(0)
    site.edges["spark1"].show_key()
    with ThreadPoolExecutor(24) as pool:
        answers = pool.map(lambda _: ask(site.edges["spark1"], "model").status, range(24))
        # No stream ends before all of them have begun.
        until(lambda: sum(requests(site).values()) == 24)
        counts = requests(site)
        for engine in site.engines.values():
            release(engine, 24)
        assert list(answers) == [200] * 24
    with capsys.disabled():
        print(f"\n24 streams at once by one address: {counts}")
    assert counts == {"demo": 12, "replica": 12}


class Load:
    """Clients that ask an edge for a model all the time."""

    def __init__(self, edge: RunningEdge, clients: int) -> None:
        self.edge = edge
        self.ended = threading.Event()
        self.results: list[tuple[float, int]] = []
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _ask(self) -> None:
        while not self.ended.is_set():
            try:
                answer = ask(self.edge, "model")
                cut = answer.status == 200 and not answer.body.endswith(b"data: [DONE]\n\n")
                status = -1 if cut else answer.status
            except (OSError, HTTPException):
                status = 0
            self.results.append((time.monotonic(), status))

    def failed(self) -> Counter[int]:
        """Return how many requests failed, by status: -1 for a stream that was cut, 0 for no answer."""
        return Counter(status for _, status in self.results if status != 200)


@pytest.mark.parametrize("part", ["edge", "engine", "own engine"])
def test_a_member_that_dies_under_load(part: str, start_site: StartSite, capsys: pytest.CaptureFixture[str]) -> None:
    site = start_site(hosts=("spark1", "spark2"), settings={"limits": {"requests_per_minute": 100000}})
    host, dead, other = ("spark1", "demo", "replica") if part == "own engine" else ("spark2", "replica", "demo")
    for engine in site.engines.values():
        engine.streams = [Stream([Event(0.02 * number, content="word ") for number in range(1, 6)])]
    with Load(site.edges["spark1"], 8) as load:
        until(lambda: min(len(engine.requests) for engine in site.engines.values()) > 20)
        before = requests(site)
        if part == "edge":
            site.kill("spark2")
        else:
            site.running[host].stop(dead)
        site.wait("spark1", **{"site_1__demo" if part == "own engine" else "site_1__at_spark2": "DOWN"})
        between = requests(site)
        until(lambda: requests(site)[other] > between[other] + 20)
    failed = load.failed()
    with capsys.disabled():
        print(f"\n{part} killed: {len(load.results)} requests, before {before}, failed {dict(failed)}")
    # At most what was under way there is lost. What came later went to the other Spark.
    assert failed.total() <= (0 if part == "own engine" else 8)
    assert requests(site)[dead] == between[dead]
    if part == "edge":
        site.edges["spark2"].start()
    else:
        site.running[host].start(dead, site.engines[dead])
    site.wait("spark1", site_1__demo="UP", site_1__at_spark2="UP")


def test_a_member_that_serves_another_model_is_down(start_site: StartSite) -> None:
    site = start_site(hosts=("spark1", "spark2"))
    second = site.edges["spark2"]
    # Its owner has given the deployment another model, and deployed only this Spark.
    changed = {**REPLICA, "overrides": {"model": {"served_name": "model-2"}}}
    site.deploy("spark2", [DEMO, OTHER, changed, {**SPARE, "active": False}, THIRD])
    site.wait("spark1", site_1__at_spark2="DOWN")
    assert [ask(site.edges["spark1"], "model").status for _ in range(6)] == [200] * 6
    assert requests(site) == {"demo": 6}
    assert ask(second, "model-2").status == 200
    assert requests(site) == {"demo": 6, "replica": 1}


def forward(
    site: RunningSite, to: str, certificate: Path | None, model: str = "model", **headers: str
) -> tuple[int, str]:
    """Return status and code of a request to the address of a Spark for other edges, with a certificate."""
    context = ssl.create_default_context(cafile=str(site.folder / to / "ca.crt"))
    context.check_hostname = False
    if certificate:
        context.load_cert_chain(certificate)
    connection = HTTPSConnection(ADDRESSES[to], site.port, context=context, timeout=LIMIT_S)
    sent = {"x-vllm-edge-who": "ada", "x-vllm-edge-model": model, **headers}
    try:
        connection.request("POST", CHAT, json.dumps({"model": model, "messages": []}), sent)
        response = connection.getresponse()
        body = response.read()
        return response.status, "" if response.status == 200 else json.loads(body)["error"]["code"]
    except OSError as error:
        return 0, type(error).__name__
    finally:
        connection.close()


def test_only_an_edge_of_the_site_may_forward_and_nothing_is_forwarded_twice(
    start_site: StartSite, tmp_path: Path
) -> None:
    site = start_site()
    own = tmp_path / "spark1" / "tls.pem"
    assert forward(site, "spark2", own) == (200, "")
    assert requests(site) == {"replica": 1}
    # Spark 2 knows where it is, and does not ask there; nor does it take a model that does not run, or no model.
    for name in ("t", "spare-model", "unknown", ""):
        assert forward(site, "spark2", own, name) == (503, "not_here")
    assert forward(site, "spark2", own, **{"x-vllm-edge-who": "a person=b"}) == (400, "bad_forward")
    assert requests(site) == {"replica": 1}
    now = datetime.now(UTC)
    pairs = {
        "nobody.pem": authority.new_certificate(site.authority, ["spark9"], now, asks=True),
        "server.pem": authority.new_certificate(site.authority, ["spark1"], now),
        "foreign.pem": authority.new_certificate(authority.new_authority(now), ["spark1"], now, asks=True),
    }
    for name, pair in pairs.items():
        (tmp_path / name).write_text(pair.certificate + pair.private_key)
    assert forward(site, "spark2", tmp_path / "nobody.pem") == (403, "forbidden")
    assert [forward(site, "spark2", tmp_path / name)[0] for name in ("server.pem", "foreign.pem")] == [0, 0]
    assert forward(site, "spark2", None)[0] == 0
    target = Target(ADDRESSES["spark2"], site.port, True, ADDRESSES["spark2"], str(tmp_path / "spark2" / "ca.crt"))
    assert spark_edge_probe.uninvited(target) == {"status": 0}
    assert "error" in spark_edge_probe.uninvited(target._replace(port=1))
    plain = spark_edge_probe.uninvited(target._replace(port=site.edges["spark2"].port))
    assert plain == {"status": 404}
    # The address of clients does not take the word of an edge for a key.
    assert site.edges["spark2"].ask("POST", CHAT, {}, key=None, headers={"x-vllm-edge-who": "ada"}).status == 401
    assert requests(site) == {"replica": 1}


@pytest.mark.parametrize("status", [400, 500, 501, 503])
def test_an_error_of_an_engine_arrives_and_does_not_put_it_down(status: int, start_site: StartSite) -> None:
    site = start_site()
    body = json.dumps({"error": {"message": "no", "type": "t", "param": None, "code": status}})
    site.engines["third"].streams = [Stream(status=status, body=body), *SHORT]
    seen = [ask(site.edges["spark1"], "t") for _ in range(4)]
    assert [answer.status for answer in seen] == [status, 200] * 2
    assert seen[0].body.decode() == body
    assert not any("vllm-edge" in name for answer in seen for name in answer.headers)
    assert requests(site) == {"third": 4}


def test_an_address_that_another_spark_answers_is_down(start_site: StartSite) -> None:
    site = start_site()
    site.kill("spark3")
    site.wait("spark1", site_4__at_spark3="DOWN")
    # The second Spark has got the address of the third, and offers its models.
    stranger = site.edge("spark3", DEPLOYMENTS, certified_as="spark2")
    site.edges["spark3"] = stranger
    stranger.start()
    time.sleep(2.5)
    site.wait("spark1", site_4__at_spark3="DOWN")
    assert ask(site.edges["spark1"], "t").error["code"] == "model_not_active"


def test_the_edge_that_is_asked_looks_at_the_key(start_site: StartSite) -> None:
    site = start_site()
    first, third = site.edges["spark1"], site.edges["spark3"]
    # Revoked on the other Spark alone: nobody asks there with it, and the first edge still vouches for ada.
    third.admin(f"del map {third.files.keys} {HASH}")
    assert (ask(third, "t").status, ask(first, "t").status) == (401, 200)
    # Revoked where she asks: at once, for the models of every Spark.
    began = time.monotonic()
    spark_edge.write_keys({}, first.files.keys)
    assert spark_edge.apply_keys({}, first.files.keys, first.files.admin_socket)
    assert [ask(first, name).status for name in ("t", "model")] == [401, 401]
    assert time.monotonic() - began < 1
    assert requests(site) == {"third": 1}


def test_a_body_of_the_default_limit_is_forwarded_whole(start_site: StartSite) -> None:
    site = start_site()
    body = {"messages": [{"role": "user", "content": "x" * (15 << 20)}], "model": "t"}
    assert site.edges["spark1"].ask("POST", CHAT, body).status == 200
    assert [request == body for request in site.engines["third"].requests] == [True]


def test_a_person_is_counted_once(start_site: StartSite) -> None:
    site = start_site(settings={"limits": {"requests_per_minute": 6}})
    statuses = [ask(site.edges["spark1"], "t").status for _ in range(7)]
    assert statuses == [200] * 6 + [429]
    assert ask(site.edges["spark3"], "t").status == 200


def test_events_arrive_one_by_one_over_two_edges(start_site: StartSite, capsys: pytest.CaptureFixture[str]) -> None:
    site = start_site()
    engine = site.engines["third"]
    engine.streams = [Stream(EVENTS)]
    body = json.dumps({"model": "t", "messages": [], "stream": True}).encode()
    gaps = {}
    for name, host in (("one edge", "spark3"), ("two edges", "spark1")):
        moments = arrivals(open_stream(site.edges[host], body=body))
        assert len(moments) == len(EVENTS)
        gaps[name] = [round(1000 * (later - earlier)) for earlier, later in pairwise(moments)]
    with capsys.disabled():
        print(f"\ngaps in ms of events that are 50 ms apart: {gaps}")
    engine.turns = threading.Semaphore(0)
    response = open_stream(site.edges["spark1"], body=body)
    for event in EVENTS:
        # The next one is not sent before this one has arrived over both edges.
        release(engine)
        while not (line := response.readline()).startswith(b"data: "):
            pass
        assert event.content in line.decode()
    assert events(response) == 0
