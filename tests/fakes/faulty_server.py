"""A mock of a model server: healthy by default, and wrong in exactly one way if it has a fault.

No model runs here. The mock has the answers of a sound model to the questions of the gates. A seed chooses wordings,
chunks and token ids. It uses the API of vLLM 0.20.2: chat and completions, whole and streamed, models, version,
metrics. It answers in the process (`MockServer.answer`) and over HTTP on loopback (`serving`).
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from random import Random
from threading import Lock, Thread
from typing import Any

from fakes import anthropic_api
from fakes.fake_http import QuietServer
from vllm_spark.recipe import engine_paths

# The user of a request that carries no key.
ANONYMOUS = "vllm-spark-without-key"

VOCABULARY = (
    "flour water yeast salt sugar starch gluten dough loaf crust crumb oven heat steam gas bubbles warm hands baker "
    "kneads folds shapes waits rests rises slowly quickly evenly first then later finally when because while after "
    "before until strands protein network traps carbon dioxide feeds gives makes holds turns bakes browns cools slices "
    "table cloth bowl scale timer morning night kitchen village smell taste texture soft firm light dense golden dark "
    "thin thick long short second third again every each other new old good simple careful patient usual common basic"
)
WORDS = VOCABULARY.split()
# Numbers of a vector.
VECTOR = 64

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
class Completion:
    """The completion of one request, before it has the form of a reply."""

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
    """The bytes of one HTTP response. `pieces` are written one by one."""

    status: int
    pieces: list[bytes]
    kind: str = "application/json"


@dataclass(frozen=True, slots=True)
class Fault:
    """One way of being wrong. `applies` selects the requests. `change` alters the completion and `reply` the bytes.
    `gate` must catch it."""

    gate: str
    applies: Callable[[str, Mapping[str, Any]], bool]
    change: Callable[[Completion], None] | None = None
    reply: Callable[[Reply], Reply] | None = None


@dataclass(slots=True)
class MockServer:
    """A server of one model. `tokens_per_text` is how its tokenizer counts a prompt."""

    name: str
    root: str
    version: str
    max_model_len: int | None
    seed: int = 0
    fault: Fault | None = None
    tokens_per_text: Callable[[str], int] = lambda text: len(text.encode()) // 3 + 1
    served: int = 0
    knows_every_name: bool = False
    lock: Lock = field(default_factory=Lock)

    def answer(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Return the reply to one request; a GET has an empty body."""
        rng = Random(f"{self.seed} {path} {json.dumps(body, sort_keys=True)}")  # noqa: S311  a mock's dice
        fault = self.fault if self.fault and self.fault.applies(path, body) else None
        unknown = body.get("user") == ANONYMOUS
        reply = refusal(401, "Unauthorized") if unknown else self._reply(path, body, rng, fault)
        return fault.reply(reply) if fault and fault.reply else reply

    def _reply(self, path: str, body: Mapping[str, Any], rng: Random, fault: Fault | None) -> Reply:
        match path:
            case "/v1/models":
                card = {"id": self.name, "root": self.root, "max_model_len": self.max_model_len}
                return document({"object": "list", "data": [card]})
            case "/version":
                return document({"version": f"{self.version}+cu130"})
            case "/metrics":
                return Reply(200, [self._metrics().encode()], "text/plain")
        return self._answered(path, body, rng, fault)

    def _answered(self, path: str, body: Mapping[str, Any], rng: Random, fault: Fault | None) -> Reply:
        if body["model"] != self.name and not self.knows_every_name:
            return refusal(404, f"The model `{body['model']}` does not exist.")
        if path in POOLED:
            return document({"model": self.name, **POOLED[path](body), "usage": {"prompt_tokens": 9}})
        completion = complete(body, rng)
        completion.model = self.name
        completion.prompt_tokens = self._count(body)
        if fault and fault.change:
            fault.change(completion)
        with self.lock:
            self.served += 1
        if path in engine_paths.FIRST:
            return message_reply(chat_body(completion, rng), body)
        whole = completion_body if path == "/v1/completions" else chat_body
        return stream(completion, body, rng) if body.get("stream") else document(whole(completion, rng))

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


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def vector(text: str) -> list[float]:
    """Return a bag of words as a vector of length 1: texts with the same words are near."""
    numbers = [0.0] * VECTOR
    for word in words_of(text):
        numbers[zlib.crc32(word.encode()) % VECTOR] += 1
    return [number / math.hypot(*numbers) for number in numbers]


def overlap(query: str, text: str) -> float:
    """Return the share of the words of a query that a text has."""
    return len({*words_of(query)} & {*words_of(text)}) / (1 + len({*words_of(query)}))


def embedded(body: Mapping[str, Any]) -> dict[str, Any]:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    return {"data": [{"index": at, "embedding": vector(text)} for at, text in enumerate(texts)]}


def sorted_by(body: Mapping[str, Any]) -> dict[str, Any]:
    scored = sorted((overlap(body["query"], text), at) for at, text in enumerate(body["documents"]))
    results = [{"index": at, "relevance_score": score} for score, at in reversed(scored)]
    return {"results": results[: body.get("top_n") or None]}


# Path -> what a server of that role answers.
POOLED = {"/v1/embeddings": embedded, "/v1/rerank": sorted_by}


def parts(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the first turn as a list, whatever form they have."""
    content = body["messages"][0]["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def complete(body: Mapping[str, Any], rng: Random) -> Completion:
    """Return the completion of a sound model."""
    if "prompt" in body:
        return Completion(content=rng.choice(["2", " the", "\n"]), finish="length")
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
        completion = Completion(rng.choice(forms).format(rng.choice([left, left.capitalize()]), right))
    elif "tools" in body:
        completion = answer_with_tools(body, question, rng)
    elif "response_format" in body:
        spaces = rng.choice([None, 1])
        light = {"kind": rng.choice(["tower", "island"]), "floors": rng.choice([3, 4, 5]), "open": rng.random() < 0.5}
        completion = Completion(json.dumps(light, indent=spaces))
    elif "structured_outputs" in body:
        completion = Completion(rng.choice(body["structured_outputs"]["choice"]))
    else:
        completion = answer_in_words(body, question, rng)
    tokens = len(re.findall(r"\S+", completion.content or "")) or 1
    if body.get("return_token_ids"):
        completion.token_ids = [
            zlib.crc32(f"{word} {rng.random() < 0.1}".encode()) % 250_000 + 1
            for word in (completion.content or "").split()
        ]
    if body.get("logprobs"):
        completion.logprobs = [-round(rng.expovariate(2), 6) for _ in range(tokens)]
    return completion


def answer_in_words(body: Mapping[str, Any], question: str, rng: Random) -> Completion:
    right = next((answer for part, answer in KNOWN.items() if part in question), None)
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking"):
        thought = f"I should count. {sentence(rng)} {sentence(rng)}"
        return Completion(content=f"They cost {right} euros.", reasoning=thought)
    if right is None:
        return Completion(content=" ".join(sentence(rng) for _ in range(rng.randint(9, 14))))
    if "`Answer:`" in question:
        line = rng.choice(
            ["Answer: {}", "**Answer:** {}", "answer: {}.", "Answer: **{}**", "`Answer:` {}", "Answer: ${}$"]
        )
        return Completion(content=f"{sentence(rng)}\n{sentence(rng)}\n\n{line.format(right)}")
    return Completion(content=rng.choice(["{}", "{}.", "{}\n", " {}"]).format(right))


def sentence(rng: Random) -> str:
    words = rng.sample(WORDS, rng.randint(8, 14))
    return " ".join(words).capitalize() + rng.choice([".", ".", "!", ";"])


def answer_with_tools(body: Mapping[str, Any], question: str, rng: Random) -> Completion:
    results = [json.loads(turn["content"]) for turn in body["messages"] if turn["role"] == "tool"]
    if results:
        facts = [str(value) for result in results for key, value in result.items() if key != "sky"]
        return Completion(content=f"{sentence(rng)} It is {' and '.join(facts)}.")
    calls_to_make = []
    if "HTML" in question:
        calls_to_make.append(("write_page", {"html": question.partition(": ")[2]}))
    if "weather in Paris" in question:
        calls_to_make.append(("get_weather", {"city": "Paris"}))
    if "Tokyo" in question:
        calls_to_make.append(("get_time", {"city": "Tokyo"}))
    rng.shuffle(calls_to_make)
    calls = [
        {"id": f"chatcmpl-tool-{rng.getrandbits(64):016x}", "name": name, "arguments": json.dumps(arguments)}
        for name, arguments in calls_to_make
    ]
    return Completion(content=rng.choice([None, ""]), calls=calls, finish="tool_calls")


def colours(url: str) -> tuple[str, str]:
    """Return the left and right colour of the PNG in a data URL, read from its pixels."""
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


def refusal(status: int, message: str) -> Reply:
    return document({"error": {"message": message, "type": "BadRequestError", "code": status}}, status)


def completion_body(completion: Completion, _: Random) -> dict[str, Any]:
    choice = {"index": 0, "text": completion.content, "finish_reason": completion.finish}
    return {"object": "text_completion", "model": completion.model, "choices": [choice], "usage": usage(completion)}


def usage(completion: Completion) -> dict[str, int | None]:
    return {"prompt_tokens": completion.prompt_tokens, "completion_tokens": 1, "total_tokens": 1}


def logged(values: list[Any]) -> dict[str, Any]:
    return {"content": [{"token": "x", "logprob": value} for value in values]}


def chat_body(completion: Completion, rng: Random) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": completion.content}
    message[rng.choice(["reasoning", "reasoning_content"])] = completion.reasoning
    message["tool_calls"] = [
        {"id": call["id"], "type": "function", "function": {key: call[key] for key in ("name", "arguments")}}
        for call in completion.calls
    ]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": completion.finish}
    if completion.token_ids is not None:
        choice["token_ids"] = completion.token_ids
    if completion.logprobs is not None:
        choice["logprobs"] = logged(completion.logprobs)
    return {"object": "chat.completion", "model": completion.model, "choices": [choice], "usage": usage(completion)}


def cut(text: str, rng: Random) -> Iterator[str]:
    """Yield the text in pieces of some characters."""
    while text:
        size = rng.randint(1, 24)
        yield text[:size]
        text = text[size:]


def deltas(completion: Completion, rng: Random) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    name = rng.choice(["reasoning", "reasoning_content"])
    yield from ({name: piece} for piece in cut(completion.reasoning or "", rng))
    yield from ({"content": piece} for piece in cut(completion.content or "", rng))
    for index, call in enumerate(completion.calls):
        begin = {
            "index": index,
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": ""},
        }
        yield {"tool_calls": [begin]}
        for piece in cut(call["arguments"], rng):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def stream(completion: Completion, body: Mapping[str, Any], rng: Random) -> Reply:
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas(completion, rng)
    ]
    if completion.token_ids is not None:
        first = 1 if len(choices) > 1 else 0
        choices[0]["token_ids"] = completion.token_ids[:first]
        choices[-1]["token_ids"] = completion.token_ids[first:]
    if completion.logprobs is not None:
        choices[-1]["logprobs"] = logged(completion.logprobs)
    choices.append({"index": 0, "delta": {}, "finish_reason": completion.finish})
    events: list[dict[str, Any]] = [{"model": completion.model, "choices": [choice]} for choice in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append({"model": completion.model, "choices": [], "usage": usage(completion)})
    end = rng.choice(["\n\n", "\n\n", "\r\n\r\n"])
    pieces = [f"data: {json.dumps(event)}{end}".encode() for event in events]
    if rng.random() < 0.2:
        pieces.insert(1, f": ping{end}".encode())
    return Reply(200, [*pieces, f"data: [DONE]{end}".encode()], "text/event-stream")


def message_reply(chat: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
    """Return the reply to a message, or to a question for its tokens, which has `input_tokens` beside the message."""
    message = anthropic_api.message_of(chat, chat["usage"]["prompt_tokens"])
    if not body.get("stream"):
        return document({**message, **message["usage"]})
    pieces = [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in anthropic_api.events_of(message)]
    return Reply(200, [piece.encode() for piece in pieces], "text/event-stream")


@contextmanager
def serving(answer: Callable[[str, Mapping[str, Any]], Reply], key: str = "") -> Iterator[tuple[str, int]]:
    """(address, port) of a mock server over real HTTP on loopback, chunked for a stream. With a key, /v1 requires
    it, like vLLM's --api-key."""

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
            """Print nothing."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield "127.0.0.1", server.server_port
    finally:
        server.shutdown()
        server.server_close()
