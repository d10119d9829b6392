"""One reading of a body: the edge routes by the model that Python's json finds in it, or refuses. And the model of the
log, which the answer names."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import edge_cases
from fakes.raw_engine import STREAM, RawEngine, chunk, document, event, stream
from fakes.running_edge import KEY, RunningEdge, check, in_front
from waiting import LIMIT_S, until

CHAT = "/v1/chat/completions"
# Name of a model -> the deployment that has it. `demo` runs.
MODELS = {"model": "demo", "other-model": "other", "o/1": "other"}
NO_MODEL = "-"
# What a body may be, at most.
BODY_BYTES = 16 << 20
# Parts of bodies.
HELLO, LINE = b'{"role": "user", "content": "hello you"},', rb"  return \"a\";\n"


@dataclass
class Reader:
    """An edge, and what it has read in a body: the route of its second stage."""

    edge: RunningEdge
    engine: RawEngine

    def read(self, body: bytes) -> str:
        """Return the model by which the edge routes, NO_MODEL for none that it knows, or the code of its refusal."""
        answer = self.edge.ask("POST", CHAT, body)
        logged = self.logged()
        if answer.status == 200:
            return logged
        code = str(answer.error["code"])
        return answer.error["message"].partition(" ")[0] if code == "model_not_active" else code

    def logged(self) -> str:
        """Return the model of the next line of the log."""
        found = re.fullmatch(
            r".* who=ada model=(\S+) path=/v1/chat/completions status=.* end=--\n?", self.edge.logged()
        )
        assert found
        return found[1]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    settings = {"open": False, "tls": "off", "limits": {"requests_per_minute": 100_000}}
    planned = edge_cases.edge_of([edge_cases.DEMO, edge_cases.OTHER], settings)
    engine = RawEngine([b"{}"])
    with in_front(planned, tmp_path_factory.mktemp("edge"), {"demo": engine}) as (edge, _):
        edge.wait_for("other", "DOWN")
        yield Reader(edge, engine)


def of_python(body: bytes) -> str | None:
    """Return the model by which the engine routes, NO_MODEL for none that the edge knows, None for a body that it
    refuses itself."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    model = found.get("model") if isinstance(found, dict) else None
    return model if isinstance(model, str) and model in MODELS else NO_MODEL


def spelt(text: str, how: int) -> str:
    """Return a JSON string, with those of its letters as escapes that the bits of a number name."""
    letters = (f"\\u{ord(one):04x}" if how >> place & 1 else json.dumps(one)[1:-1] for place, one in enumerate(text))
    return f'"{"".join(letters)}"'


# Names and texts, of which many are almost a model.
words = st.sampled_from(
    ["model", "other-model", "o/1", "Model", "mode", "model ", "o\\/1", '"model":"o/1"', "\\", "a", ""]
)
texts = st.builds(spelt, words | st.text(max_size=8), st.integers(0, 31))
spaces = st.sampled_from(["", " ", "\n", "\t \r\n"])


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.builds(lambda key, a, b, value: f"{key}{a}:{b}{value}", texts, spaces, spaces, inner)
    return st.builds(
        lambda pairs, space: "{" + f",{space}".join(pairs) + space + "}", st.lists(pair, max_size=4), spaces
    )


values = st.recursive(
    texts | st.sampled_from(["null", "true", "-1.5e3", "NaN", "{}", "[]"]),
    lambda inner: st.builds(lambda each: f"[{','.join(each)}]", st.lists(inner, max_size=3)) | objects(inner),
    max_leaves=6,
)
encodings = st.sampled_from(["utf-8"] * 8 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])


@settings(max_examples=400, deadline=None)
@given(text=objects(values) | values, encoding=encodings, cut=st.none() | st.integers(1, 40))
def test_the_edge_reads_what_python_reads_or_refuses(reader: Reader, text: str, encoding: str, cut: int | None) -> None:
    body = text.encode(encoding, "surrogatepass")[:cut] or b"{"
    witness = of_python(body)
    assert reader.read(body) in {witness or NO_MODEL, "invalid_model", *(MODELS if witness is None else ())}


# Body -> what the edge reads in it.
READ: dict[bytes, str] = {
    b'{"model": "model"}': "model",
    b'\xef\xbb\xbf{"model" : "o/1"}': "o/1",
    b'{"\\u006dod\\u0065l": "other-model"}': "other-model",
    b'{"model": "\\u006f\\/1"}': "o/1",
    b'{"model": "o\\u005c/1"}': NO_MODEL,
    b'{"model": null}': NO_MODEL,
    b'{"model": {"model": "o/1"}}': NO_MODEL,
    b'{"messages": [{"model": "o/1"}], "x": {"model": "o/1"}}': NO_MODEL,
    b'{"x": "\\\\", "model": "o/1", "y": "\\"model\\": \\"model\\""}': "o/1",
    b'["model", {"model": "o/1"}]': NO_MODEL,
    # Two keys: the last one counts for Python.
    b'{"model": "model", "model": "other-model"}': "invalid_model",
    b'{"model": "other-model", "messages": [], "mod\\u0065l": "model"}': "invalid_model",
    b'{"model": "model", "model": null}': "invalid_model",
    # Control characters.
    b'{"model": "other-model\\u0000"}': "invalid_model",
    b'{"model": "model\\n"}': "invalid_model",
    b'{"model": "\\rmodel"}': "invalid_model",
    b'{"model": "mo\\u007fdel"}': "invalid_model",
    b'{"model": "model\x00"}': "invalid_model",
    b'{"model": "%s"}' % (b"m" * 100_000): "invalid_model",
    '{"model": "other-model"}'.encode("utf-16"): "invalid_model",
    '{"model": "other-model"}'.encode("utf-32-be"): "invalid_model",
}


@pytest.mark.parametrize("body", READ, ids=range(len(READ)))
def test_a_body_is_read_so(reader: Reader, body: bytes) -> None:
    assert reader.read(body) == READ[body]
    witness = of_python(body)
    assert READ[body] in {witness, "invalid_model"}


def test_every_split_of_a_body_reads_the_same(reader: Reader) -> None:
    """The parts that the edge reads at once have 64 KiB: their borders go through each byte of what counts."""
    counts = rb'\\\"model\":\"model\"\\", "\u006dodel": "o\u002f1", "x": "\\'
    for border in range(len(counts) + 2):
        for parts in (1, 2):
            filled = b"x" * (parts * 65536 - border - len(b'{"messages": "'))
            body = b'{"messages": "' + filled + counts + b'"}'
            assert of_python(body) == "o/1"
            assert reader.read(body) == "o/1", border


@pytest.mark.parametrize(("strings", "code"), [(249_990, "model_not_active"), (250_010, "invalid_model")])
def test_a_body_with_too_many_strings_is_refused(reader: Reader, strings: int, code: str) -> None:
    error = reader.edge.ask("POST", CHAT, b'{"input": [%s0], "model": "o/1"}' % (b'"",' * strings)).error
    reader.edge.logged()
    assert error["code"] == code
    assert code != "invalid_model" or "it has more than 250000 strings" in error["message"]


def kinds(size: int) -> dict[str, bytes]:
    """Return bodies of a size: what a client sends, and what takes a reader the longest."""
    return {
        "text": b'{"messages": "%s", "model": "o/1"}' % (b"x" * (size - 40)),
        "code": b'{"messages": "%s", "model": "o/1"}' % (LINE * ((size - 40) // len(LINE))),
        "messages": b'{"messages": [%s{}], "model": "o/1"}' % (HELLO * ((size - 40) // len(HELLO))),
        "numbers": b'{"input": [%s0], "model": "o/1"}' % (b"12345," * ((size - 40) // 6)),
        "spaces": b'{"input": %s0, "model": "o/1"}' % (b" " * (size - 40)),
        "braces": b'{"model": "o/1", "x": ' + b"{" * (size - 22),
        "objects": b'{"input": [%s0], "model": "o/1"}' % (b"{}," * ((size - 40) // 3)),
        "texts": b'{"input": [%s0], "model": "o/1"}' % (b'"",' * ((size - 40) // 3)),
        "keys": b'{%s"model": "o/1"}' % (b'"a":1,' * ((size - 40) // 6)),
        "quotes": b'{"model": "o/1", "x": ' + b'"' * (size - 22),
        "backslashes": b'{"messages": "%s", "model": "o/1"}' % (b"\\\\" * ((size - 40) // 2)),
    }


@pytest.mark.parametrize("kind", kinds(100))
def test_a_body_of_any_kind_is_read_in_time_and_others_go_on(reader: Reader, kind: str) -> None:
    """HAProxy's own watchdog ends a process whose thread does nothing else for two seconds. A body with too many
    strings is refused. HAProxy ends a reading after 4 s, which the largest bodies of odd kinds may take here."""
    took, worker = [], reader.edge.worker()
    for size in (1 << 10, 1 << 20, BODY_BYTES):
        usual = {"text", "code"} if size == BODY_BYTES else {*kinds(100)} - {"texts", "quotes"}
        ends = set() if size == 1 << 10 or kind in usual else {"invalid_model"}
        with others(reader.edge) as waits:
            began = time.monotonic()
            code = reader.edge.ask("POST", CHAT, kinds(size)[kind]).error["code"]
            took.append(time.monotonic() - began)
            reader.edge.logged()
        assert code in {"model_not_active", *ends}
    print(f"\n{kind:12}" + "".join(f"{1000 * each:9.1f} ms" for each in (*took, max(waits))))
    assert reader.edge.worker() == worker
    assert max(waits) < LIMIT_S


@contextlib.contextmanager
def others(edge: RunningEdge) -> Iterator[list[float]]:
    """Ask again and again meanwhile. Yields a list, which has in the end how many seconds each answer took."""
    ended = threading.Event()
    waits: list[float] = []

    def ask() -> None:
        while not ended.wait(0.01) or not waits:
            began = time.monotonic()
            edge.ask("POST", CHAT, b'{"model": "o/1"}')
            edge.logged()
            waits.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        ended.set()
        thread.join()


def answer(**more: Any) -> tuple[list[bytes], str]:
    return [json.dumps(document(text="x", **more)).encode()], "application/json"


LATE = {"choices": [{"message": {"content": "x" * 5000, "model": "a-lie"}}]}
# What the engine answers -> the model of the log. The request is of `model`.
NAMED: dict[str, tuple[tuple[list[bytes], str], str]] = {
    "plain": (answer(model="org/an-adapter:1"), "org/an-adapter:1"),
    "of a stream": (([chunk("a", model="an-adapter"), *stream("b")], STREAM), "an-adapter"),
    "of a stream that begins with a comment": (
        ([b": hello\n\n", chunk("a", model="an-adapter")], STREAM),
        "an-adapter",
    ),
    "in the response of the first event": (
        ([event({"type": "response.created", "response": {"model": "an-adapter"}}, "response.created")], STREAM),
        "an-adapter",
    ),
    "in the message of the first event": (
        ([event({"type": "message_start", "message": {"content": [], "model": "an-adapter"}})], STREAM),
        "an-adapter",
    ),
    "none": (answer(), "model"),
    "an error": (([b'{"error": {"message": "x", "model": "a-lie"}}'], "application/json"), "model"),
    "in a text": (([chunk('"model": "a-lie", "response": {"model": "a-lie"}'), *stream("b")], STREAM), "model"),
    "behind a long text": (([json.dumps({**LATE, "model": "an-adapter"}).encode()], "application/json"), "an-adapter"),
    "not of the first event": (([chunk("a"), chunk("b", model="a-lie")], STREAM), "model"),
    "of 129 bytes": (answer(model="a" * 129), "model"),
    "of 128 bytes": (answer(model="a" * 128), "a" * 128),
    **{
        f"hostile: {text!r}": (answer(model=text), "model")
        for text in ("", "-", "a b", "a\n who=owner", 'a"', "ä", "a\x7f", "a%s")
    },
    "of rubbish": (([b'\xff\x00{"model": "a-lie'], "application/json"), "model"),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_log_has_the_model_of_the_answer(reader: Reader, name: str) -> None:
    (reader.engine.pieces, reader.engine.kind), expected = NAMED[name]
    assert reader.edge.ask("POST", CHAT, b'{"model": "model"}').body == b"".join(reader.engine.pieces)
    assert reader.logged() == expected


@pytest.mark.parametrize("sent", [1, 100_000, BODY_BYTES - 1])
def test_a_body_whose_client_has_gone_is_not_read(reader: Reader, sent: int) -> None:
    """What was read would get an answer, which nobody takes."""
    before, arrived = ended(reader.edge), counts(reader.edge, "req_tot")
    with socket.create_connection((reader.edge.address, reader.edge.port), timeout=LIMIT_S) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        client.sendall(f"{head}Content-Length: {BODY_BYTES}\r\n\r\n".encode() + b" " * sent)
        # The first stage forwards nothing of a client that it sees go.
        until(lambda: counts(reader.edge, "req_tot") != arrived)
    until(lambda: ended(reader.edge) != before)
    assert ended(reader.edge) == {"dreq": before["dreq"] + 1, "hrsp_4xx": before["hrsp_4xx"]}
    assert " path=/v1/chat/completions status=" in reader.edge.logged()


def ended(edge: RunningEdge) -> dict[str, int]:
    """Return how many requests of clients the second stage has dropped, and how many it has refused."""
    return counts(edge, "dreq", "hrsp_4xx")


def counts(edge: RunningEdge, *names: str) -> dict[str, int]:
    """Return counters of the clients of the second stage, by HAProxy's names."""
    head, *rows = csv.reader(edge.admin_route("show stat").removeprefix("# ").splitlines())
    (front,) = (dict(zip(head, row, strict=False)) for row in rows if row[:2] == ["edge_api", "FRONTEND"])
    return {name: int(front[name]) for name in names}


def test_a_haproxy_without_lua_reads_the_first_model_and_says_so(reader: Reader, tmp_path: Path) -> None:
    text = Path(reader.edge.files.route).read_text()
    assert text.count("feature(LUA)") == 2
    verdict = check(text.replace("feature(LUA)", "feature(SUN)"), tmp_path)
    assert verdict.returncode == 0
    assert "this HAProxy has no Lua: of two models in a body it takes the first" in verdict.stderr
    Path(reader.edge.files.route).write_text(text.replace("feature(LUA)", "feature(SUN)"))
    reader.edge.restart()
    reader.edge.wait_for("other", "DOWN")
    try:
        assert reader.read(b'{"model": "other-model", "model": "model"}') == "other-model"
        assert reader.read(b'{"model": "model"}') == "model"
    finally:
        Path(reader.edge.files.route).write_text(text)
        reader.edge.restart()
        reader.edge.wait_for("other", "DOWN")
