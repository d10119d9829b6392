"""The tokens of the log: what an answer itself says, and a dash for what it does not say or only pretends to say."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from fakes import edge_cases
from fakes.raw_engine import STREAM, RawEngine, chunk, document, event, stream
from fakes.running_edge import KEY, Answer, RunningEdge, check, in_front
from vllm_spark.core import paths
from vllm_spark.recipe import engine_paths
from waiting import until

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
MESSAGES, COUNT_TOKENS = engine_paths.MESSAGES, engine_paths.COUNT_TOKENS
USAGE = {
    "prompt_tokens": 12,
    "total_tokens": 46,
    "completion_tokens": 34,
    "prompt_tokens_details": {"cached_tokens": 8},
}
NEW_USAGE = {
    "input_tokens": 12,
    "input_tokens_details": {"cached_tokens": 8, "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
    "output_tokens": 34,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 46,
}
# As vLLM writes it with enable-prompt-tokens-details: `input_tokens` are without the cache.
MESSAGE_USAGE = {"input_tokens": 4, "output_tokens": 34, "cache_read_input_tokens": 8}
LIE = '"usage":{"prompt_tokens":999,"completion_tokens":999}'
# What a model may write, to be believed: bare, as a whole answer, as an event, with broken or unfinished escapes.
HOSTILE = (
    LIE,
    f'"}}],{LIE}}}',
    f'\\"}}],{LIE}}}',
    f'\\\\"}}],{LIE}}}',
    f'{{"id":"x",{LIE}}}',
    f'\n\ndata: {{"choices":[],{LIE}}}\n\ndata: [DONE]\n\n',
    "}" * 50 + LIE + "{" * 50,
    '"' * 99 + LIE,
    "\\" * 99 + LIE,
    f"x{LIE.replace('{', '{' * 20)}",
    LIE * 500,
)
# Two buffers: HAProxy keeps some of them, and which of their pages are filled differs. Eight answers have 400 MB.
GROWN_KIB = 2 * (17 << 10)


@dataclass
class Edge:
    """An edge in front of one raw engine."""

    running: RunningEdge
    engine: RawEngine

    def answers(self, *pieces: bytes, kind: str = "application/json", **more: Any) -> None:
        """Let the engine answer so from now on."""
        self.engine.pieces, self.engine.kind = pieces, kind
        self.engine.headers, self.engine.cut = more.get("headers", ""), more.get("cut", False)

    def ask(self, path: str = CHAT, **more: Any) -> Answer:
        return self.running.ask("POST", path, {"model": "model", "input": "SECRET"}, **more)

    def figures(self) -> tuple[str, str, str]:
        """Return the tokens of the prompt, those of the answer and the events, of the next line of the log."""
        found = re.search(r" in_tokens=(\S+) out_tokens=(\S+) events=(\S+) text_bytes=", self.running.logged())
        assert found
        return found[1], found[2], found[3]


@pytest.fixture
def edges(tmp_path: Path) -> Iterator[Callable[..., Edge]]:
    with ExitStack() as running:

        def _open(**more: Any) -> Edge:
            planned = edge_cases.edge_of([edge_cases.DEMO], {"open": False, "limits": {"requests_per_minute": 100_000}})
            engine = RawEngine()
            return Edge(running.enter_context(in_front(planned, tmp_path, {"demo": engine}, **more))[0], engine)

        yield _open


@pytest.fixture
def edge(edges: Callable[..., Edge]) -> Edge:
    return edges()


# Name -> (path, answer, tokens of the prompt and of the answer).
PLAIN: dict[str, tuple[str, dict[str, Any], tuple[str, str]]] = {
    "chat": (CHAT, document(USAGE, prompt_logprobs=None, kv_transfer_params=None), ("12", "34")),
    "completion": ("/v1/completions", {"choices": [{"text": "x"}], "usage": USAGE}, ("12", "34")),
    "response": (RESPONSES, {"tools": [], "usage": NEW_USAGE, "user": None}, ("12", "34")),
    "embedding": (EMBEDDINGS, {"data": [{"embedding": [0.5] * 4000}], "usage": {"prompt_tokens": 12}}, ("12", "-")),
    "messages": (MESSAGES, {"type": "message", "content": [{"text": LIE}], "usage": MESSAGE_USAGE}, ("12", "34")),
    "counted tokens": (COUNT_TOKENS, {"input_tokens": 12}, ("-", "-")),
    "no usage": (CHAT, document(), ("-", "-")),
    "an error": (CHAT, {"error": {"message": LIE, "code": 400}}, ("-", "-")),
    # Keys of a client, which /v1/responses returns.
    "a lie in a schema": (RESPONSES, {"tools": [{"p": {"usage": USAGE}}], "text": {"usage": USAGE}}, ("-", "-")),
    "a lie as a key": (CHAT, {'x"usage': {"prompt_tokens": 999}}, ("-", "-")),
    # A client asks for what stands behind it: return_token_ids, prompt_logprobs, return_prompt_text.
    "token ids behind it": (CHAT, document(USAGE, prompt_token_ids=[*range(90_000)]), ("12", "34")),
    "logprobs behind it": (CHAT, document(USAGE, prompt_logprobs=[{"1": {"token": LIE}}] * 2000), ("12", "34")),
    "a prompt behind it": (CHAT, document(USAGE, prompt_text=LIE * 2000), ("12", "34")),
    "more strings than are read": (CHAT, {"top": [""] * 2_100_000, "usage": USAGE}, ("-", "-")),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_plain_answer_says_its_tokens(edge: Edge, name: str, indent: int | None) -> None:
    path, answer, tokens = PLAIN[name]
    body = json.dumps(answer, indent=indent).encode()
    edge.answers(body)
    assert edge.ask(path).body == body
    assert edge.figures() == (*tokens, "-")


def test_a_stream_says_its_tokens_if_its_client_has_asked_for_them(edge: Edge) -> None:
    words = [f"word {number}" for number in range(20)]
    continuous = [chunk(word, usage={**USAGE, "completion_tokens": number}) for number, word in enumerate(words)]
    edge.answers(*stream(words, USAGE), kind=STREAM)
    assert edge.ask().body == b"".join(stream(words, USAGE))
    assert edge.figures() == ("12", "34", "22")
    edge.answers(*stream(words), kind=STREAM)
    assert edge.ask().status == 200
    assert edge.figures() == ("-", "-", "21")
    # stream_options.continuous_usage_stats: every event has the tokens until then.
    edge.answers(*continuous, *stream([], USAGE), kind=STREAM)
    assert edge.ask().status == 200
    assert edge.figures() == ("12", "34", "22")


def test_a_stream_of_responses_says_its_tokens(edge: Edge) -> None:
    lie = {"tools": [{"parameters": {"properties": {"usage": USAGE}}}], "metadata": {"usage": LIE}}
    created, completed = ({"response": {**lie, "usage": usage, "user": None}} for usage in (None, NEW_USAGE))
    edge.answers(event(created, "response.created"), event(completed, "response.completed"), kind=STREAM)
    assert edge.ask(RESPONSES).status == 200
    assert edge.figures() == ("12", "34", "2")


def test_a_stream_of_messages_says_its_tokens_at_its_end(edge: Edge) -> None:
    """The first event has those of the prompt, and none of the answer."""
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 12, "output_tokens": 0}}}
    text = {"type": "content_block_delta", "delta": {"text": f'"type":"message_start",{LIE}'}}
    end = {"type": "message_delta", "delta": {"stop_sequence": '"type":"message_start"'}, "usage": MESSAGE_USAGE}
    begun = [event(start, "message_start"), event(text, "content_block_delta")]
    ended = [event(end, "message_delta"), event({"type": "message_stop"}, "message_stop")]
    edge.answers(*begun, *ended, kind=STREAM)
    assert edge.ask(f"{MESSAGES}?beta=true").status == 200
    assert edge.figures() == ("12", "34", "4")
    edge.answers(*begun, kind=STREAM, cut=True)
    with pytest.raises(IncompleteRead):
        edge.ask(MESSAGES)
    # HAProxy may not show a filter what comes with the end of a connection.
    assert edge.figures()[:2] in {("12", "-"), ("-", "-")}


def test_what_a_client_lets_stand_behind_the_usage_of_an_event_does_not_hide_it(edge: Edge) -> None:
    """`enable_response_messages` puts all messages there."""
    last = {"response": {"output": ["x" * 70_000], "usage": NEW_USAGE, "input_messages": [{"text": LIE}] * 9000}}
    edge.answers(*stream("ab")[:-1], event(last, "response.completed"), kind=STREAM)
    assert edge.ask(RESPONSES).status == 200
    assert edge.figures() == ("12", "34", "3")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_model_writes_is_not_believed(edge: Edge, text: str) -> None:
    for usage, tokens in ((USAGE, ("12", "34")), (None, ("-", "-"))):
        edge.answers(json.dumps(document(usage, text)).encode())
        edge.ask()
        assert edge.figures() == (*tokens, "-")
        edge.answers(*stream([text, text], usage), kind=STREAM)
        edge.ask()
        assert edge.figures() == (*tokens, "4" if usage else "3")


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_cut_answer_says_nothing_that_a_model_has_written(edge: Edge, text: str) -> None:
    """Cut behind the text, with the lie at the end."""
    written = json.dumps(text)[1:-1].encode()
    for whole, kind in ((json.dumps(document(USAGE, text)).encode(), "application/json"), (chunk(text), STREAM)):
        edge.answers(whole[: whole.index(written) + len(written)], kind=kind, cut=True)
        with pytest.raises(IncompleteRead):
            edge.ask()
        assert edge.figures()[:2] == ("-", "-")


def test_every_split_of_an_answer_says_the_same(edge: Edge) -> None:
    """Two pieces arrive apart, cut at each byte of the object in turn."""
    plain, events = json.dumps(document(USAGE)).encode(), b"".join(stream(["a"], USAGE))
    for body, kind, count in ((plain, "application/json", "-"), (events, STREAM, "3")):
        for place in range(body.index(b'"usage"') - 2, len(body), 3):
            edge.engine.turns = threading.Semaphore(1)
            edge.answers(body[:place], body[place:], kind=kind)
            assert in_pieces(edge, place) == body
            assert edge.figures() == ("12", "34", count)


def asked(edge: Edge) -> tuple[HTTPConnection, HTTPResponse]:
    """Return a connection and its response, whose header has arrived."""
    connection = edge.running.connect()
    connection.request("POST", CHAT, b'{"model": "model"}', {"Authorization": f"Bearer {KEY}"})
    return connection, connection.getresponse()


def in_pieces(edge: Edge, first: int) -> bytes:
    """Return the body of an answer whose second piece is sent after so many bytes have arrived."""
    assert edge.engine.turns is not None
    connection, response = asked(edge)
    begun = response.read(first)
    edge.engine.turns.release()
    rest = response.read()
    connection.close()
    return begun + rest


def test_a_stream_whose_client_goes_says_how_many_events_have_passed(edge: Edge) -> None:
    edge.engine.turns = threading.Semaphore(1)
    edge.answers(*stream(["word"], USAGE), kind=STREAM)
    connection, response = asked(edge)
    response.read(len(chunk("word")))
    response.close()
    connection.close()
    assert edge.figures() == ("-", "-", "1")


def test_a_compressed_answer_says_nothing(edge: Edge) -> None:
    edge.answers(json.dumps(document(USAGE)).encode(), headers="Content-Encoding: gzip\r\n")
    assert edge.ask().status == 200
    assert edge.figures() == ("-", "-", "-")


def test_the_edges_own_answers_say_nothing(edge: Edge) -> None:
    assert edge.ask(key="sk-of-nobody").status == 401
    assert edge.figures() == ("-", "-", "-")


def test_huge_answers_leave_the_memory_as_it_was(edge: Edge) -> None:
    plain = [b'{"choices": [{"text": "', *[b"x" * 65536] * 800, b'"}], "usage": ', json.dumps(USAGE).encode(), b"}"]
    events = [chunk("x" * 60000)] * 800 + stream([], USAGE)
    for pieces, kind, count in ((plain, "application/json", "-"), (events, STREAM, "802")):
        edge.answers(*pieces, kind=kind)
        # The first ones fill buffers, which HAProxy keeps.
        for _ in range(2):
            edge.ask()
            edge.running.logged()
        before = edge.running.memory_kib()
        for _ in range(8):
            assert len(edge.ask().body) > 800 * 60000
            assert edge.figures() == ("12", "34", count)
        grown = edge.running.memory_kib() - before
        print(f"\n8 answers of 50 MB, {kind}: {before // 1024} MiB before, {grown / 1024:+.1f} MiB")
        assert grown < GROWN_KIB


def test_an_error_of_the_program_is_a_dash_and_the_answer_whole(edges: Callable[..., Edge], tmp_path: Path) -> None:
    faulty = tmp_path / "tokens.lua"
    text = (paths.TEMPLATES / "edge-tokens.lua").read_text()
    for function in ("begin", "keep", "say"):
        text = re.sub(rf"(local function {function}\(.*\)\n)", r"\1  error('broken')\n", text)
    assert text.count("broken") == 3
    faulty.write_text(text)
    edge = edges(tokens=faulty)
    for pieces, kind in (([json.dumps(document(USAGE)).encode()], "application/json"), (stream("abc", USAGE), STREAM)):
        edge.answers(*pieces, kind=kind)
        assert edge.ask().body == b"".join(pieces)
        assert edge.figures() == ("-", "-", "-")


def test_a_haproxy_without_lua_takes_the_configuration_and_says_nothing(edge: Edge, tmp_path: Path) -> None:
    without = edge.running.text.replace("feature(LUA)", "feature(SUN)")
    assert without.count("feature(SUN)") == 2
    verdict = check(without, tmp_path)
    assert (verdict.returncode, verdict.stderr) == (0, "")
    before = edge.running.worker()
    edge.running.reload()
    until(lambda: edge.running.has_reloaded(before))
    edge.answers(json.dumps(document(USAGE)).encode())
    assert edge.ask().status == 200
    assert edge.figures() == ("-", "-", "-")


def test_the_command_of_the_documentation_sums_by_person_and_model(edge: Edge, tmp_path: Path) -> None:
    page = (paths.ROOT / "docs/operations/edge.md").read_text()
    found = re.search(r"```\njournalctl -u vllm-edge --since today -o cat \| (awk .*?)\n```", page, re.DOTALL)
    assert found
    edge.running.admin(f"add map {edge.running.files.keys} {hashlib.sha256(b'sk-of-bob').hexdigest()} bob")
    lines = []
    for name, usage in (("ada", USAGE), ("ada", USAGE), ("bob", USAGE), ("ada", None)):
        edge.answers(json.dumps(document(usage)).encode())
        edge.ask(key=f"sk-of-{name}")
        lines.append(edge.running.logged().partition(": ")[2])
    edge.ask(key="sk-of-nobody")
    lines.append(edge.running.logged().partition(": ")[2])
    awk = shutil.which("awk")
    assert awk
    done = subprocess.run(["bash", "-c", found[1]], input="\n".join(lines), capture_output=True, text=True, check=True)
    rows = sorted(line.split() for line in done.stdout.splitlines()[1:])
    assert rows == [["ada", "model", "3", "1", "24", "68"], ["bob", "model", "1", "0", "12", "34"]]
