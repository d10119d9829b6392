"""The Ollama module against a fake server that has Ollama's API over real HTTP, with one fault per test."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

import loopback
from fakes.fake_http import QuietServer
from project_files import load_module
from waiting import LIMIT_S

module = load_module("spark_ollama")
ollama = __import__("ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_ollama", fromlist=["loaded"])

TWO = {"gemma4:26b": 18253611008, "nomic-embed-text:latest": 1073741824}


@dataclass
class FakeOllama:
    """A fake Ollama with the models in its memory. `polls`: the number of lists that still contain a model after the
    request to unload it; None: all of them."""

    models: dict[str, int] = field(default_factory=lambda: dict(TWO))
    polls: int | None = 0
    status: int = 200
    raw: bytes | None = None
    silent: bool = False
    busy_after_unload: int = 0
    requests: list[tuple[str, Any]] = field(default_factory=list)
    going: set[str] = field(default_factory=set)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        self.requests.append((f"{method} {path}", body))
        if self.raw is not None:
            return 200, self.raw
        if path == "/api/ps":
            if self.going and self.busy_after_unload:
                self.busy_after_unload -= 1
                return 503, b"busy"
            listed = [
                {"name": name, "model": name, "size": size, "size_vram": size} for name, size in self.models.items()
            ]
            self._let_go()
            return 200, json.dumps({"models": listed}).encode()
        if self.status == 200:
            self.going.add(body["model"])
            self._let_go()
        reply = {"model": body["model"], "response": "", "done": True, "done_reason": "unload"}
        return self.status, json.dumps(reply if self.status == 200 else {"error": "out of order"}).encode()

    def _let_go(self) -> None:
        if self.polls == 0:
            self.models = {name: size for name, size in self.models.items() if name not in self.going}
        elif self.polls and self.going:
            self.polls -= 1


@contextmanager
def listening(ollama_server: FakeOllama) -> Iterator[str]:
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if ollama_server.silent:
                ended.wait(LIMIT_S)
                return
            body = json.loads(self.rfile.read(length)) if length else None
            status, content = ollama_server.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815  the name that http.server looks for

        def log_message(self, *_: object) -> None:
            """Print nothing: the requests are in `requests`."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the module and return its result."""
    monkeypatch.setattr(ollama, "POLL_INTERVAL_S", 0.02)
    monkeypatch.setattr(ollama, "LIST_TIMEOUT_S", LIMIT_S)

    def _run(url: str, check: bool = False, deadline_s: int = 60) -> dict[str, Any]:
        args = {"url": url, "deadline_s": deadline_s, "_ansible_check_mode": check}
        with patch_module_args(args), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    return _run


UNLOADS = [("POST /api/generate", {"model": name, "keep_alive": 0, "stream": False}) for name in TWO]


@pytest.mark.parametrize("polls", [0, 3], ids=["at once", "after a while"])
def test_every_model_is_unloaded_once(run: Run, polls: int) -> None:
    ollama_server = FakeOllama(polls=polls)
    with listening(ollama_server) as url:
        result = run(url)
    assert (result["changed"], result["models"], "failed" in result) == (True, sorted(TWO), False)
    assert [call for call in ollama_server.requests if call[0].startswith("POST")] == UNLOADS
    assert ollama_server.requests[-1] == ("GET /api/ps", None), (
        "the wait ends when no model is listed, not after the request"
    )
    assert ollama_server.models == {}


def test_check_mode_names_the_models(run: Run) -> None:
    ollama_server = FakeOllama()
    with listening(ollama_server) as url:
        result = run(url, check=True)
    assert result["changed"]
    assert result["msg"] == "would ask Ollama to unload gemma4:26b, nomic-embed-text:latest"
    assert (result["diff"]["before"], result["diff"]["after"]) == ("gemma4:26b\nnomic-embed-text:latest\n", "")
    assert ollama_server.requests == [("GET /api/ps", None)]
    assert ollama_server.models == TWO


def test_nothing_is_loaded(run: Run) -> None:
    ollama_server = FakeOllama(models={})
    with listening(ollama_server) as url:
        result = run(url)
    assert (result["changed"], result["models"]) == (False, [])
    assert result["msg"].endswith("no model is loaded")
    assert len(ollama_server.requests) == 1


def test_a_host_without_ollama(run: Run) -> None:
    with loopback.refusing_port() as port:
        url = f"http://127.0.0.1:{port}"
        result = run(url)
        assert (result["changed"], result["msg"]) == (False, f"{url}: no Ollama")
        assert ollama.loaded(url) is None


def test_a_model_that_stays_is_an_error_by_the_deadline(run: Run) -> None:
    ollama_server = FakeOllama(polls=None)
    with listening(ollama_server) as url:
        result = run(url, deadline_s=1)
    assert result["failed"]
    assert result["models"] == list(TWO)
    assert "Ollama still has gemma4:26b, nomic-embed-text:latest loaded after 1 s — expected: none" in result["msg"]
    assert "Fix: end the clients that use it" in result["msg"]
    assert result["msg"].endswith("See docs/runbooks/gpu-memory-held.md")
    assert ollama_server.models == TWO, "nothing was ended"


def test_the_error_of_ollama_is_reported(run: Run) -> None:
    with listening(FakeOllama(status=500)) as url:
        result = run(url, deadline_s=1)
    assert 'the response for gemma4:26b was 500 {"error": "out of order"}' in result["msg"]


def test_a_busy_ollama_is_not_unloaded(run: Run) -> None:
    ollama_server = FakeOllama(polls=None, busy_after_unload=1000)
    with listening(ollama_server) as url:
        result = run(url, deadline_s=1)
    assert result["failed"], "no answer is no proof that the memory is free"


STRANGE = [
    b"",
    b"<!DOCTYPE html>",
    b"[]",
    b"null",
    b'{"models": 3}',
    b'{"models": [3]}',
    b'{"models": [{}]}',
    b'{"models": [{"name": "x", "size": [1]}]}',
    b"[" * 100000,
    b"\xff\xfe",
]


@pytest.mark.parametrize("raw", STRANGE, ids=lambda raw: repr(raw[:30]))
def test_another_server_on_its_port_is_not_ollama(run: Run, raw: bytes) -> None:
    with listening(FakeOllama(raw=raw)) as url:
        assert ollama.loaded(url) is None
        assert not run(url)["changed"]


def test_an_ollama_without_a_list(run: Run) -> None:
    with listening(FakeOllama(raw=b'{"models": null}')) as url:
        assert ollama.loaded(url) == []
        assert not run(url)["changed"]


def test_a_port_without_responses_times_out() -> None:
    with listening(FakeOllama(silent=True)) as url:
        assert ollama.loaded(url, timeout_s=0.2) is None


def test_a_model_without_a_size_is_listed() -> None:
    with listening(FakeOllama(raw=b'{"models": [{"model": "x"}]}')) as url:
        assert ollama.loaded(url) == [{"name": "x", "bytes": 0}]
