"""A page in a real Chromium that asks the edge from another origin. The browser trusts the site's authority, as an
owner's does, and still judges every certificate. `make edge` installs both."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from test_clients import CHAT, UNKNOWN

import loopback
from browser.chromium import Chromium, chromium
from conftest import EVENTS, Start
from fakes.running_edge import KEY, Answer, RunningEdge
from fakes.scripted_engine import ScriptedEngine, Stream
from vllm_spark.edge import authority

PATH = "/v1/chat/completions"
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
# What a page can see of an answer. An answer that the browser keeps from the page is an exception.
FETCH = """
fetch(%s, {method: %s, headers: %s, body: %s}).then(
  async answer => ({status: answer.status, after: answer.headers.get("retry-after"), text: await answer.text()}),
  error => ({failed: error.name}))
"""
# The texts of the events, each with the number of reads that it took.
STREAM = """
fetch(%s, {method: "POST", headers: %s, body: %s}).then(async answer => {
  const reader = answer.body.getReader(), decoder = new TextDecoder(), parts = [];
  for (let part = await reader.read(); !part.done; part = await reader.read()) parts.push(decoder.decode(part.value));
  return parts;
})
"""


class Page(BaseHTTPRequestHandler):
    """An empty page of an application."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>chat</title>")

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def origins() -> Iterator[tuple[str, str]]:
    """Two origins with a page. The loopback address makes them secure contexts."""
    with (
        loopback.running(ThreadingHTTPServer((loopback.ADDRESS, 0), Page)) as listed,
        loopback.running(ThreadingHTTPServer((loopback.ADDRESS, 0), Page)) as other,
    ):
        first, second = (f"http://{loopback.ADDRESS}:{server.server_address[1]}" for server in (listed, other))
        yield first, second


@contextmanager
def browser(edge: RunningEdge, trusts: bool = True) -> Iterator[Chromium]:
    """Yield a browser that trusts the authority of the edge, as `certutil -A` of an owner lets it."""
    home = edge.folder / "home"
    store = home / ".pki" / "nssdb"
    store.mkdir(parents=True)
    certutil = ["certutil", "-d", f"sql:{store}"]
    subprocess.run([*certutil, "-N", "--empty-password"], check=True)
    if trusts:
        for number, one in enumerate(authority.certificates((edge.folder / "ca.crt").read_text())):
            file = home / f"{number}.crt"
            file.write_text(authority.pem(one))
            subprocess.run([*certutil, "-A", "-n", f"site {number}", "-t", "C,,", "-i", str(file)], check=True)
    with chromium(home) as running:
        yield running


def ask(page: Chromium, edge: RunningEdge, request: str, body: object = None, key: str = KEY) -> Any:
    """Return what a page sees of the answer to METHOD PATH."""
    method, path = request.split()
    headers = {"Authorization": f"Bearer {key}", **({"Content-Type": "application/json"} if body else {})}
    sent = json.dumps(json.dumps(body)) if body else "undefined"
    url = f"https://127.0.0.1:{edge.port}{path}"
    return page.evaluate(FETCH % (json.dumps(url), json.dumps(method), json.dumps(headers), sent))


def test_a_page_of_a_listed_origin_gets_every_answer(
    start: Start, engine: ScriptedEngine, origins: tuple[str, str]
) -> None:
    edge = start(origins=[origins[0]], limits={"body_mib": 1})
    engine.streams = [CHAT, UNKNOWN, Stream(EVENTS)]
    question = {"model": "model", "messages": []}
    with browser(edge) as page:
        page.open(origins[0])
        assert page.evaluate("[isSecureContext, location.origin]") == [True, origins[0]]
        assert ask(page, edge, f"POST {PATH}", question) == {"status": 200, "after": None, "text": CHAT.body}
        assert ask(page, edge, f"POST {PATH}", {**question, "model": "nobody"})["status"] == 404
        assert ask(page, edge, "GET /v1/models")["status"] == 200
        refused = ask(page, edge, f"POST {PATH}", question, key="sk-of-nobody")
        assert (refused["status"], json.loads(refused["text"])["error"]["code"]) == (401, "invalid_api_key")
        large = ask(page, edge, f"POST {PATH}", {**question, "more": "x" * (1 << 20)})
        assert (large["status"], json.loads(large["text"])["error"]["code"]) == (413, "body_too_large")
        # A path that is not listed has no preflight.
        assert ask(page, edge, "GET /metrics") == {"failed": "TypeError"}
        parts = page.evaluate(
            STREAM
            % (
                json.dumps(f"https://127.0.0.1:{edge.port}{PATH}"),
                json.dumps({"Authorization": f"Bearer {KEY}"}),
                json.dumps(json.dumps({**question, "stream": True})),
            )
        )
    assert "".join(parts).count("data: {") == len(EVENTS)
    assert len(parts) > 1
    assert len(engine.heads) == 4
    assert all("\r\norigin:" not in head.lower() for head in engine.heads)


def test_a_page_of_another_origin_gets_none(start: Start, engine: ScriptedEngine, origins: tuple[str, str]) -> None:
    edge = start(origins=[origins[0]])
    with browser(edge) as page:
        page.open(origins[1])
        assert ask(page, edge, f"POST {PATH}", {"model": "model", "messages": []}) == {"failed": "TypeError"}
        assert ask(page, edge, "GET /v1/models") == {"failed": "TypeError"}
    assert engine.heads == []


def test_without_origins_no_page_gets_an_answer(start: Start, engine: ScriptedEngine, origins: tuple[str, str]) -> None:
    edge = start()
    with browser(edge) as page:
        page.open(origins[0])
        assert ask(page, edge, "GET /v1/models") == {"failed": "TypeError"}
    assert engine.heads == []


def test_a_browser_without_the_authority_does_not_connect(
    start: Start, engine: ScriptedEngine, origins: tuple[str, str]
) -> None:
    """The checks above can fail: the browser judges the certificate."""
    edge = start(origins=[origins[0]])
    with browser(edge, trusts=False) as page:
        page.open(origins[0])
        assert ask(page, edge, "GET /v1/models") == {"failed": "TypeError"}
        page.command("Runtime.evaluate", expression="0")
        errors = [event["params"] for event in page.events if event.get("method") == "Network.loadingFailed"]
    assert {error["errorText"] for error in errors} == {"net::ERR_CERT_AUTHORITY_INVALID"}


ORIGIN = "https://chat.home:3000"
ALLOWED = "access-control-allow-origin"
# Method, path, Origin, headers -> status. A listed origin alone is in every answer.
PREFLIGHTS = [
    ("OPTIONS", PATH, ORIGIN, PREFLIGHT, 204),
    ("OPTIONS", "/v1/models", ORIGIN, PREFLIGHT, 204),
    ("OPTIONS", "/metrics", ORIGIN, PREFLIGHT, 404),
    ("OPTIONS", PATH, ORIGIN, {}, 404),
    ("OPTIONS", PATH, "https://chat.home", PREFLIGHT, 404),
    ("OPTIONS", PATH, "https://chat.home:3000.evil.example", PREFLIGHT, 404),
    ("OPTIONS", PATH, "HTTPS://chat.home:3000", PREFLIGHT, 404),
    ("OPTIONS", PATH, f"{ORIGIN}, https://evil.example", PREFLIGHT, 404),
    ("OPTIONS", PATH, "null", PREFLIGHT, 404),
    ("OPTIONS", PATH, "", PREFLIGHT, 404),
    ("OPTIONS", PATH, ORIGIN, {**PREFLIGHT, "Host": "evil.example"}, 421),
    ("OPTIONS", PATH, ORIGIN, {**PREFLIGHT, "X-More": "x" * 17000}, 431),
    ("POST", PATH, ORIGIN, {}, 401),
    ("POST", PATH, "https://evil.example", {}, 401),
    ("GET", "/health", ORIGIN, {}, 200),
    ("GET", "/docs", ORIGIN, {}, 404),
]


def test_only_a_listed_origin_is_answered_as_one(start: Start, engine: ScriptedEngine) -> None:
    edge = start(origins=[ORIGIN])

    def seen(method: str, path: str, origin: str, headers: dict[str, str]) -> Answer:
        return edge.ask(method, path, key=None, headers={**({"Origin": origin} if origin else {}), **headers})

    answers = [(*case, seen(*case[:4])) for case in PREFLIGHTS]
    assert [(*case, answer.status) for *case, _, answer in answers] == PREFLIGHTS
    for _, _, origin, _, status, answer in answers:
        assert answer.headers.get(ALLOWED) == (ORIGIN if origin == ORIGIN else None)
        assert answer.headers["vary"] == "Origin"
        assert ("access-control-allow-methods" in answer.headers) == (status == 204)
    assert engine.heads == []


def test_the_engine_says_nothing_about_origins(start: Start, engine: ScriptedEngine) -> None:
    """What an engine sends to a page of any origin does not pass, and it is not asked by pages."""
    edge = start(origins=[ORIGIN])
    engine.headers = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Credentials": "true"}
    ours, other, none = (
        edge.ask("GET", "/v1/models", headers={"Origin": origin} if origin else {})
        for origin in (ORIGIN, "https://evil.example", "")
    )
    assert [answer.status for answer in (ours, other, none)] == [200] * 3
    assert [answer.headers.get(ALLOWED) for answer in (ours, other, none)] == [ORIGIN, None, None]
    assert all("access-control-allow-credentials" not in answer.headers for answer in (ours, other, none))
    assert all("\r\norigin:" not in head.lower() for head in engine.heads)
