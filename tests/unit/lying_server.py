"""A mock of a model server: healthy by default, and wrong in exactly one way where it is told one lie.

No model runs here. The mock knows what a sound model answers to the gates' questions, in wordings, chunks and token ids
that follow a seed, and speaks vLLM's forms of 0.20.2: chat and completions, whole and streamed, models, version and
metrics. It answers in the process (`Mock.answer`) and over HTTP on loopback (`serving`).
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Lock, Thread
from typing import Any

VOCABULARY = (
    "flour water yeast salt sugar starch gluten dough loaf crust crumb oven heat steam gas bubbles warm hands baker "
    "kneads folds shapes waits rests rises slowly quickly evenly first then later finally when because while after "
    "before until strands protein network traps carbon dioxide feeds gives makes holds turns bakes browns cools slices "
    "table cloth bowl scale timer morning night kitchen village smell taste texture soft firm light dense golden dark "
    "thin thick long short second third again every each other new old good simple careful patient usual common basic"
)
WORDS = VOCABULARY.split()

# A part of the question -> the one right answer.
KNOWN = {
    "capital of France?": "Paris",
    "19 * 23": "437",
    "17 sheep": "9",
    "A pad and a pen": "5",
    "2, 6, 12, 20, 30": "42",
    "shortest of the three": "Carl",
    "strawberry": "3",
    "in 100 days": "Friday",
    "14:45": "155",
    "12 pens": "8",
}


@dataclass(slots=True)
class Said:
    """What the mock's model says to one request, before it has the form of a reply."""

    content: str | None = None
    reasoning: str | None = None
    calls: list[dict[str, str]] = field(default_factory=list)
    finish: str = "stop"
    model: str = ""
    prompt_tokens: int | None = 0
    token_ids: list[Any] | None = None
    logprobs: list[Any] | None = None


@dataclass(slots=True)
class Reply:
    """What goes over the wire. `pieces` are written one by one; `chunked` only where a stream is."""

    status: int
    pieces: list[bytes]
    kind: str = "application/json"


@dataclass(frozen=True, slots=True)
class Lie:
    """One way of being wrong. `message` changes what is said to the requests that `of` picks, `reply` the bytes."""

    gate: str
    of: Callable[[str, Mapping[str, Any]], bool]
    message: Callable[[Said], None] | None = None
    reply: Callable[[Reply], Reply] | None = None


@dataclass(slots=True)
class Mock:
    """A server of one model. `tokens_per_text` is how its tokenizer counts a prompt."""

    name: str
    root: str
    version: str
    max_model_len: int | None
    seed: int = 0
    lie: Lie | None = None
    tokens_per_text: Callable[[str], int] = lambda text: len(text.encode()) // 3 + 1
    served: int = 0
    knows_every_name: bool = False
    lock: Lock = field(default_factory=Lock)

    def answer(self, path: str, body: Mapping[str, Any]) -> Reply:
        """The reply to one request; a GET has an empty body."""
        rng = Random(f"{self.seed} {path} {json.dumps(body, sort_keys=True)}")  # noqa: S311  a mock's dice
        lie = self.lie if self.lie and self.lie.of(path, body) else None
        reply = self._reply(path, body, rng, lie)
        return lie.reply(reply) if lie and lie.reply else reply

    def _reply(self, path: str, body: Mapping[str, Any], rng: Random, lie: Lie | None) -> Reply:
        match path:
            case "/v1/models":
                card = {"id": self.name, "root": self.root, "max_model_len": self.max_model_len}
                return document({"object": "list", "data": [card]})
            case "/version":
                return document({"version": f"{self.version}+cu130"})
            case "/metrics":
                return Reply(200, [self._metrics().encode()], "text/plain")
        if body["model"] != self.name and not self.knows_every_name:
            return refusal(404, f"The model `{body['model']}` does not exist.")
        said = think(body, rng)
        said.model = self.name
        said.prompt_tokens = self._count(body)
        if lie and lie.message:
            lie.message(said)
        with self.lock:
            self.served += 1
        if path == "/v1/completions":
            return document(completion(said))
        return stream(said, body, rng) if body.get("stream") else document(whole(said, rng))

    def _metrics(self) -> str:
        labels = f'engine="0",model_name="{self.name}"'
        counts = (("stop", 3.0), ("length", float(self.served)), ("abort", 0.0))
        lines = [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {value}' for reason, value in counts
        ]
        return "\n".join(["# TYPE vllm:request_success_total counter", *lines, "python_gc_objects 1.0", ""])

    def _count(self, body: Mapping[str, Any]) -> int:
        if "prompt" in body:
            return self.tokens_per_text(body["prompt"])
        pictures = sum(part["type"] == "image_url" for part in parts(body))
        return 12 + self.tokens_per_text(json.dumps([part.get("text") for part in parts(body)])) + 70 * pictures


def parts(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of the first turn, as a list whatever form it has."""
    content = body["messages"][0]["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def think(body: Mapping[str, Any], rng: Random) -> Said:
    """What a sound model says."""
    if "prompt" in body:
        return Said(content=rng.choice(["2", " the", "\n"]), finish="length")
    question = "".join(part.get("text", "") for part in parts(body))
    pictures = [part["image_url"]["url"] for part in parts(body) if part["type"] == "image_url"]
    if pictures:
        left, right = colours(pictures[0])
        forms = (
            "{0}, {1}",
            "{0} {1}",
            "The left half is **{0}** and the right half is **{1}**.",
            "Left: {0}\nRight: {1}",
        )
        said = Said(rng.choice(forms).format(rng.choice([left, left.capitalize()]), right))
    elif "tools" in body:
        said = with_tools(body, question, rng)
    elif "response_format" in body:
        spaces = rng.choice([None, 1])
        light = {"kind": rng.choice(["tower", "island"]), "floors": rng.choice([3, 4, 5]), "open": rng.random() < 0.5}
        said = Said(json.dumps(light, indent=spaces))
    elif "structured_outputs" in body:
        said = Said(rng.choice(body["structured_outputs"]["choice"]))
    else:
        said = in_words(body, question, rng)
    tokens = len(re.findall(r"\S+", said.content or "")) or 1
    if body.get("return_token_ids"):
        said.token_ids = [
            zlib.crc32(f"{word} {rng.random() < 0.1}".encode()) % 250_000 + 1 for word in (said.content or "").split()
        ]
    if body.get("logprobs"):
        said.logprobs = [-round(rng.expovariate(2), 6) for _ in range(tokens)]
    return said


def in_words(body: Mapping[str, Any], question: str, rng: Random) -> Said:
    right = next((answer for part, answer in KNOWN.items() if part in question), None)
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking"):
        thought = f"I should count. {sentence(rng)} {sentence(rng)}"
        return Said(content=f"They cost {right} euros.", reasoning=thought)
    if right is None:
        return Said(content=" ".join(sentence(rng) for _ in range(rng.randint(9, 14))))
    if "`Answer:`" in question:
        line = rng.choice(
            ["Answer: {}", "**Answer:** {}", "answer: {}.", "Answer: **{}**", "`Answer:` {}", "Answer: ${}$"]
        )
        return Said(content=f"{sentence(rng)}\n{sentence(rng)}\n\n{line.format(right)}")
    return Said(content=rng.choice(["{}", "{}.", "{}\n", " {}"]).format(right))


def sentence(rng: Random) -> str:
    words = rng.sample(WORDS, rng.randint(8, 14))
    return " ".join(words).capitalize() + rng.choice([".", ".", "!", ";"])


def with_tools(body: Mapping[str, Any], question: str, rng: Random) -> Said:
    results = [json.loads(turn["content"]) for turn in body["messages"] if turn["role"] == "tool"]
    if results:
        facts = [str(value) for result in results for key, value in result.items() if key != "sky"]
        return Said(content=f"{sentence(rng)} It is {' and '.join(facts)}.")
    wanted = []
    if "HTML" in question:
        wanted.append(("write_page", {"html": question.partition(": ")[2]}))
    if "weather in Paris" in question:
        wanted.append(("get_weather", {"city": "Paris"}))
    if "Tokyo" in question:
        wanted.append(("get_time", {"city": "Tokyo"}))
    rng.shuffle(wanted)
    calls = [
        {"id": f"chatcmpl-tool-{rng.getrandbits(64):016x}", "name": name, "arguments": json.dumps(arguments)}
        for name, arguments in wanted
    ]
    return Said(content=rng.choice([None, ""]), calls=calls, finish="tool_calls")


def colours(url: str) -> tuple[str, str]:
    """Left and right colour of a data URL's PNG, read from its pixels."""
    png = base64.b64decode(url.partition("base64,")[2])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, width = 8, b"", 0
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + content)
        width = struct.unpack(">I", content[:4])[0] if kind == b"IHDR" else width
        data += content if kind == b"IDAT" else b""
        at += 12 + length
    rows = zlib.decompress(data)
    names = {b"\xff\x00\x00": "red", b"\x00\x00\xff": "blue"}
    return names[rows[1:4]], names[rows[width * 3 - 2 : width * 3 + 1]]


def document(body: Any, status: int = 200) -> Reply:
    return Reply(status, [json.dumps(body).encode()])


def refusal(status: int, says: str) -> Reply:
    return document({"error": {"message": says, "type": "BadRequestError", "code": status}}, status)


def completion(said: Said) -> dict[str, Any]:
    choice = {"index": 0, "text": said.content, "finish_reason": said.finish}
    return {"object": "text_completion", "model": said.model, "choices": [choice], "usage": usage(said)}


def usage(said: Said) -> dict[str, int | None]:
    return {"prompt_tokens": said.prompt_tokens, "completion_tokens": 1, "total_tokens": 1}


def logged(values: list[Any]) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": value} for value in values]}


def whole(said: Said, rng: Random) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.content}
    message[rng.choice(["reasoning", "reasoning_content"])] = said.reasoning
    message["tool_calls"] = [
        {"id": call["id"], "type": "function", "function": {key: call[key] for key in ("name", "arguments")}}
        for call in said.calls
    ]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": said.finish}
    if said.token_ids is not None:
        choice["token_ids"] = said.token_ids
    if said.logprobs is not None:
        choice["logprobs"] = logged(said.logprobs)
    return {"object": "chat.completion", "model": said.model, "choices": [choice], "usage": usage(said)}


def cut(text: str, rng: Random) -> Iterator[str]:
    """The text in pieces of some characters."""
    while text:
        size = rng.randint(1, 24)
        yield text[:size]
        text = text[size:]


def deltas(said: Said, rng: Random) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    name = rng.choice(["reasoning", "reasoning_content"])
    yield from ({name: piece} for piece in cut(said.reasoning or "", rng))
    yield from ({"content": piece} for piece in cut(said.content or "", rng))
    for index, call in enumerate(said.calls):
        begin = {
            "index": index,
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": ""},
        }
        yield {"tool_calls": [begin]}
        for piece in cut(call["arguments"], rng):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def stream(said: Said, body: Mapping[str, Any], rng: Random) -> Reply:
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas(said, rng)]
    if said.token_ids is not None:
        first = 1 if len(choices) > 1 else 0
        choices[0]["token_ids"] = said.token_ids[:first]
        choices[-1]["token_ids"] = said.token_ids[first:]
    if said.logprobs is not None:
        choices[-1]["logprobs"] = logged(said.logprobs)
    choices.append({"index": 0, "delta": {}, "finish_reason": said.finish})
    events: list[dict[str, Any]] = [{"model": said.model, "choices": [choice]} for choice in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({"model": said.model, "choices": [], "usage": usage(said)})
    end = rng.choice(["\n\n", "\n\n", "\r\n\r\n"])
    pieces = [f"data: {json.dumps(event)}{end}".encode() for event in events]
    if rng.random() < 0.2:
        pieces.insert(1, f": ping{end}".encode())
    return Reply(200, [*pieces, f"data: [DONE]{end}".encode()], "text/event-stream")


@contextmanager
def serving(answer: Callable[[str, Mapping[str, Any]], Reply], key: str = "") -> Iterator[tuple[str, int]]:
    """(address, port) of a mock server over real HTTP on loopback, chunked where it streams. With a key, /v1 is for
    those who send it, as vLLM's --api-key has it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            closed = key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}"
            reply = refusal(401, "Unauthorized") if closed else answer(self.path, body)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            streamed = reply.kind == "text/event-stream"
            if streamed:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(sum(map(len, reply.pieces))))
            self.end_headers()
            with suppress(OSError):
                for piece in reply.pieces:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if streamed else piece)
                self.wfile.write(b"0\r\n\r\n" if streamed else b"")

        do_POST = do_GET  # noqa: N815  the name that http.server looks for

        def log_message(self, *_: object) -> None:
            """Silent: the verdicts are what is looked at."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield "127.0.0.1", server.server_port
    finally:
        server.shutdown()
        server.server_close()
