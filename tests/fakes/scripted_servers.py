"""Servers of every kind that stream a chat completion by a script: what is sent when, and which figures are right.

    python tests/fakes/scripted_servers.py [PORT [SLOWER]]

Every time of the scripts is multiplied by SLOWER, so that a busy machine counts less. It prints its port, then serves
until its standard input ends. The files of DATA have the scripts; the server of a script is below /NAME. It
writes down when it has sent each token, so that a busy machine does not falsify what is right; GET /NAME/log returns
that. No code of the bench is used here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import statistics
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data"
# Those of real.yml and held.yml follow the code of real servers. Nobody looks at held.yml while a client is changed.
FILES = ("bench_servers.yml", "bench_servers_real.yml", "bench_servers_held.yml")
MODEL = "scripted"
# Tokens of the chat template around a prompt.
TEMPLATE = 8
WORDS = (DATA.parents[1] / "src/vllm_spark/node/bench/corpora/long.txt").read_text(encoding="utf-8").split()[:200]
# What the engines write around a token.
SHAPES: dict[str, dict[str, Any]] = {
    "vllm": {"chunk": {"object": "chat.completion.chunk"}, "role": {"role": "assistant", "content": ""}, "ids": True},
    "openai": {
        "chunk": {"object": "chat.completion.chunk", "service_tier": "default", "system_fingerprint": None},
        "role": {"role": "assistant", "content": "", "refusal": None},
        "event": {"usage": None, "obfuscation": "Zk3"},
    },
    "azure": {
        "chunk": {"object": "chat.completion.chunk"},
        "before": [{"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}],
        "role": {"role": "assistant", "content": ""},
        "choice": {"content_filter_results": {"hate": {"filtered": False}}},
    },
    "llama.cpp": {
        "chunk": {"object": "chat.completion.chunk", "system_fingerprint": "b7100-1"},
        "role": {"role": "assistant", "content": None},
        "last": {"timings": {"predicted_n": 64, "predicted_per_second": 50.1}},
    },
    "sglang": {
        "chunk": {"object": "chat.completion.chunk"},
        "role": {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None},
        "delta": {"role": None, "reasoning_content": None, "tool_calls": None},
        "choice": {"matched_stop": None, "logprobs": None},
        "event": {"usage": None},
    },
    "ollama": {
        "chunk": {"object": "chat.completion.chunk", "system_fingerprint": "fp_ollama"},
        "delta": {"role": "assistant"},
    },
    "litellm": {
        "chunk": {"object": "chat.completion.chunk", "system_fingerprint": None, "citations": None},
        "delta": {"provider_specific_fields": None, "refusal": None, "role": "assistant", "function_call": None},
        "choice": {"logprobs": None},
    },
    "mistral": {"chunk": {"object": "chat.completion.chunk"}, "role": {"role": "assistant", "content": ""}},
    "groq": {
        "chunk": {"object": "chat.completion.chunk", "x_groq": {"id": "req_1"}},
        "role": {"role": "assistant", "content": "", "channel": "analysis"},
        "delta": {"channel": "analysis"},
    },
}
# Members of a delta that hold reasoning in another form than a text.
REASONING: dict[str, Any] = {
    "mistral": lambda text: {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]},
    "reasoning_details": lambda text: {
        "content": "",
        "reasoning_details": [{"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}],
    },
    "thinking_blocks": lambda text: {"content": "", "thinking_blocks": [{"type": "thinking", "thinking": text}]},
}


@dataclass(frozen=True, slots=True)
class Script:
    """One server. Times are in seconds after a request, `sizes` are tokens of the events in turn.

    `role` is the time of a chunk without a token, `stall` is (events before it, seconds). `extra` are raw bytes at
    times, `every` repeats them. `split` cuts what is sent into pieces of as many bytes, `join` holds back as many
    events for one piece. `raw` is the whole reply to a request, and `rejects` those to requests by their number.
    `right` are the ids of faults of which one has to be named, `bent` the figures that they excuse; without `right` all
    figures have to be right. `through` is a real gateway before the server. `silent` are tokens without an event, by
    their number: they come with the next one; `hidden_tokens` of them are reasoning by the usage. `cumulative` repeats
    the text so far in each event.
    """

    name: str
    source: str
    shape: str = "vllm"
    first: float = 0.25
    gap: float = 0.02
    first_size: int = 0
    sizes: Sequence[int] = (1,)
    stall: Sequence[float] = ()
    jitter: float = 0.0
    reasoning: int = 0
    reasoning_name: str = "reasoning"
    tools: Any = False
    silent: Sequence[int] = ()
    hidden_tokens: int = 0
    cumulative: bool = False
    member: str = "delta"
    nested_ids: bool = False
    parts: bool = False
    role: float | None = None
    ids: bool | None = None
    output: int = 0
    hidden_end: bool = False
    finish: Any = "length"
    usage: Any = "last"
    completion_more: int = 0
    prompt_factor: float = 1.0
    cached: int = 0
    patch: dict[str, Any] = field(default_factory=dict)
    last_patch: dict[str, Any] = field(default_factory=dict)
    listed: bool = False
    pretty: bool = False
    start: str = "HTTP/1.1 200 OK"
    kind: str = "text/event-stream"
    head: Sequence[str] = ()
    head_end: str = "\r\n"
    before_head: str = ""
    frames: str = "chunked"
    extension: str = ""
    trailer: str = ""
    data: str = "data: "
    eol: str = "\n"
    fields: str = ""
    bom: bool = False
    done: str = "data: [DONE]\n\n"
    extra: Sequence[dict[str, Any]] = ()
    text: str = ""
    split: int = 0
    join: int = 0
    late_blank: bool = False
    end: str = "close"
    raw: str | None = None
    rejects: dict[int, str] = field(default_factory=dict)
    version: str | None = None
    tokenize: Any = "words"
    metrics: Any = "vllm"
    models: str = ""
    others: int = 0
    streams: int = 1
    prompt: int = 256
    tokens: int = 64
    right: Sequence[str] = ()
    bent: Sequence[str] = ()
    through: str = ""

    @property
    def is_vllm(self) -> bool:
        return self.shape == "vllm" if self.version is None else bool(self.version)

    @property
    def has_ids(self) -> bool:
        return self.shape == "vllm" if self.ids is None else self.ids


@lru_cache
def scripts() -> dict[str, Script]:
    """Return every script by its name."""
    texts = [(DATA / file).read_text(encoding="utf-8") for file in FILES]
    rows = [row for text in texts for row in yaml.load(text, yaml.CSafeLoader).items()]
    return {name: Script(name, row.pop("from"), **row) for name, row in rows}


@dataclass(slots=True)
class Piece:
    """Bytes that are sent at a time. `tokens` has (time by the script, number) of the tokens that they complete."""

    at: float
    content: bytes
    tokens: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class Reply:
    """The reply to a completion: its pieces, and what happens then: close, reset, stall or open."""

    pieces: list[Piece]
    end: str
    prompt: int = 0
    output: int = 0


def count(text: str) -> int:
    """Return the number of tokens of a text: every word is one."""
    return len(text.split())


def asked(body: dict[str, Any]) -> int:
    """Return the length of the answer that a request asks for. Newer clients give it another name."""
    return int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)


def reply(script: Script, number: int, body: dict[str, Any]) -> Reply:
    """Return the reply to a completion, the `number`-th of its server."""
    prompt = TEMPLATE + sum(count(str(one.get("content"))) for one in body.get("messages", []))
    raw = script.rejects.get(number, script.raw)
    if raw is not None:
        return Reply([Piece(0.0, raw.encode("latin-1"))], script.end, prompt)
    wanted = script.output or asked(body)
    if not body.get("stream"):
        return Reply([Piece(0.0, _whole(script, wanted, prompt))], "close", prompt, wanted)
    pieces = _joined(script, list(_events(script, wanted, prompt, body)))
    pieces = [part for piece in pieces for part in _split(script, piece)]
    return Reply(_framed(script, pieces), script.end, prompt, wanted)


def _whole(script: Script, wanted: int, prompt: int) -> bytes:
    """Return the response to a request without a stream."""
    choice = {"index": 0, "message": {"role": "assistant", "content": WORDS[0]}, "finish_reason": "length"}
    document = {"object": "chat.completion", "choices": [choice], "usage": _usage(script, wanted, prompt)}
    content = json.dumps(document).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _events(script: Script, wanted: int, prompt: int, body: dict[str, Any]) -> Iterator[Piece]:
    shape = SHAPES[script.shape]
    sent, index, at, held = 0, 0, script.first, 0
    extras = sorted(_extras(script), key=lambda piece: piece.at)
    yield from _beginning(script, extras)
    while sent < wanted:
        if script.stall and index == script.stall[0]:
            at += script.stall[1]
        size = script.first_size if script.first_size and not index else script.sizes[index % len(script.sizes)]
        size = min(size, wanted - sent)
        while extras and extras[0].at <= at:
            yield extras.pop(0)
        moved = script.jitter * (index * 7 % 11 - 5) / 5 if index else 0.0
        hidden = script.hidden_end and sent + size == wanted
        begin = 0 if script.cumulative else sent
        words = [WORDS[one % len(WORDS)] for one in range(begin, sent + size)]
        delta = {} if hidden else _delta(script, index, words)
        ids = [1000 + sent + one for one in range(size)]
        finish = script.finish if sent + size == wanted and shape.get("ids") else None
        held += size
        if index not in script.silent:
            yield _event(script, at + moved, _chunk(script, delta, ids, finish, index, sent + size, prompt), held)
            held = 0
        sent, index, at = sent + size, index + 1, at + script.gap
    last = at - script.gap
    if script.end != "cut":
        if not shape.get("ids"):
            ended = {**_chunk(script, {}, None, script.finish), **shape.get("last", {})}
            if script.usage == "choice":
                ended["choices"][0]["usage"] = _usage(script, sent, prompt)
            yield _event(script, last, ended)
        if script.usage in ("last", "each", "text", "negative", "float"):
            usage = _usage(script, sent, prompt)
            yield _event(script, last, {**shape["chunk"], "choices": [], "usage": usage, **script.last_patch})
        elif script.last_patch:
            yield _event(script, last, {**shape["chunk"], "choices": [], **script.last_patch})
    yield from (Piece(max(piece.at, last), piece.content) for piece in extras)
    if script.done and script.end != "cut":
        yield Piece(last, script.done.encode("latin-1"))


def _beginning(script: Script, extras: list[Piece]) -> Iterator[Piece]:
    """Yield what comes before the first token, and the extra pieces that are due by then."""
    shape = SHAPES[script.shape]
    if script.bom:
        yield Piece(0.0, b"\xef\xbb\xbf")
    yield from (_event(script, 0.0, {**shape["chunk"], **one}) for one in shape.get("before", ()))
    if "role" in shape or script.role is not None:
        role = shape.get("role", {"role": "assistant", "content": ""})
        at_role = script.first if script.role is None else script.role
        while extras and extras[0].at <= at_role:
            yield extras.pop(0)
        yield _event(script, at_role, _chunk(script, role, None))
    if script.tools == "head":
        call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "bake", "arguments": ""}}
        head = {"role": "assistant", "content": None, "tool_calls": [call]}
        yield _event(script, script.first, _chunk(script, head, None))


def _extras(script: Script) -> Iterator[Piece]:
    for one in script.extra:
        at = one.get("at", 0.0)
        for number in range(int(one.get("times", 1))):
            nested = f"{'[' * one['nested']}\n\n" if "nested" in one else ""
            yield Piece(at + number * one.get("every", 0.0), (one["raw"] + nested).encode("latin-1"))


def _delta(script: Script, index: int, words: Sequence[str]) -> dict[str, Any]:
    more = SHAPES[script.shape].get("delta", {})
    text = script.text if script.text and index == 5 else "".join(f" {word}" for word in words)
    if script.tools == "function":
        return {**more, "content": None, "function_call": {"arguments": text}}
    if script.tools:
        name = {"name": "bake"} if not index and script.tools != "head" else {}
        return {**more, "tool_calls": [{"index": 0, "function": {**name, "arguments": text}}]}
    if index < script.reasoning:
        shaped = REASONING.get(script.reasoning_name)
        return {**more, **(shaped(text) if shaped else {script.reasoning_name: text})}
    return {**more, "content": [{"type": "text", "text": text}] if script.parts else text}


def _chunk(  # noqa: PLR0913, PLR0917  the parts of a chunk
    script: Script,
    delta: dict[str, Any],
    ids: list[int] | None,
    finish: Any = None,
    index: int = 0,
    sent: int = 0,
    prompt: int = 0,
) -> dict[str, Any]:
    shape = SHAPES[script.shape]
    choice = {"index": 0, script.member: delta, "finish_reason": finish, **shape.get("choice", {})}
    if script.has_ids:
        choice["token_ids"] = [ids] if script.nested_ids else ids
    chunk = {"id": f"chatcmpl-{index}", **shape["chunk"], "created": 1790000000, "model": MODEL, "choices": [choice]}
    chunk |= shape.get("event", {})
    if script.usage == "each" and sent:
        chunk["usage"] = _usage(script, sent, prompt)
    return {**chunk, **script.patch}


def _usage(script: Script, sent: int, prompt: int) -> dict[str, Any]:
    completion: Any = sent + script.completion_more
    completion = {"text": str(completion), "negative": -1, "float": float(completion)}.get(script.usage, completion)
    details = {"cached_tokens": script.cached} if script.cached else None
    prompted = round(prompt * script.prompt_factor)
    usage = {"prompt_tokens": prompted, "completion_tokens": completion, "prompt_tokens_details": details}
    hidden = {"completion_tokens_details": {"reasoning_tokens": script.hidden_tokens}}
    return usage | (hidden if script.hidden_tokens else {})


def _event(script: Script, at: float, document: dict[str, Any], tokens: int = 0) -> Piece:
    text = json.dumps([document] if script.listed else document, indent=1 if script.pretty else None)
    lines = "".join(f"{script.data}{line}{script.eol}" for line in text.split("\n"))
    content = f"{script.fields}{lines}{script.eol}"
    return Piece(at, content.encode(), [(at, tokens)] if tokens else [])


def _joined(script: Script, pieces: list[Piece]) -> list[Piece]:
    """Return the pieces as a gateway passes them that waits for `join` tokens' events."""
    if not script.join:
        return pieces
    joined: list[Piece] = []
    for piece in pieces:
        if joined and 0 < len(joined[-1].tokens) < script.join:
            held = joined[-1]
            held.at, held.content = piece.at, held.content + piece.content
            held.tokens += piece.tokens
        else:
            joined.append(piece)
    return joined


def _split(script: Script, piece: Piece) -> Iterator[Piece]:
    size = script.split or len(piece.content) or 1
    parts = [piece.content[start : start + size] for start in range(0, len(piece.content), size)]
    if script.late_blank and piece.tokens:
        # The line end that completes the event comes with the next one.
        parts = [piece.content[:-1]]
        yield Piece(piece.at, parts[0], piece.tokens)
        yield Piece(piece.at + script.gap * 0.9, piece.content[-1:])
        return
    for number, part in enumerate(parts, 1):
        yield Piece(piece.at, part, piece.tokens if number == len(parts) else [])


def _framed(script: Script, pieces: list[Piece]) -> list[Piece]:
    lines = [script.start, f"Content-Type: {script.kind}"]
    if script.frames == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif script.frames == "length":
        lines.append(f"Content-Length: {sum(len(piece.content) for piece in pieces)}")
    head = script.head_end.join([*lines, *script.head, "", ""])
    if script.frames == "chunked":
        pieces = [Piece(piece.at, _frame(script, piece.content), piece.tokens) for piece in pieces if piece.content]
        if script.end not in ("cut", "stall", "reset", "open"):
            pieces.append(Piece(pieces[-1].at, f"0\r\n{script.trailer}\r\n".encode()))
    return [Piece(0.0, (script.before_head + head).encode("latin-1")), *pieces]


def _frame(script: Script, content: bytes) -> bytes:
    return f"{len(content):X}{script.extension}\r\n".encode() + content + b"\r\n"


@dataclass(slots=True)
class State:
    """What the server of a script has counted."""

    completions: int = 0
    running: int = 0
    counters: dict[str, float] = field(
        default_factory=lambda: {
            "process_start_time_seconds": 1.79e9,
            "vllm:request_success_total": 3.0,
            "vllm:generation_tokens_total": 100.0,
            "vllm:prompt_tokens_total": 900.0,
            "vllm:prompt_tokens_cached_total": 0.0,
        }
    )
    log: list[dict[str, Any]] = field(default_factory=list)

    def finished(self, script: Script, done: Reply, *, whole: bool) -> None:
        """Count a request that has ended."""
        self.running -= 1
        if whole and done.output:
            self.counters["vllm:request_success_total"] += 1 + script.others
            self.counters["vllm:generation_tokens_total"] += done.output + 40 * script.others
            self.counters["vllm:prompt_tokens_total"] += done.prompt
            self.counters["vllm:prompt_tokens_cached_total"] += script.cached


def document(script: Script, state: State, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Return (status, content) of a request that is not a completion."""
    listed = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 131072}]}
    documents = {"/v1/models": script.models or json.dumps(listed), "/log": json.dumps(state.log)}
    if script.is_vllm:
        documents["/version"] = json.dumps({"version": script.version or "0.33.0"})
        counted = count(body.get("prompt", "")) if script.tokenize == "words" else script.tokenize
        documents["/tokenize"] = "" if counted is None else json.dumps({"count": counted})
        documents["/metrics"] = _metrics(state) if script.metrics == "vllm" else script.metrics
    found = documents.get(path)
    return (200, found.encode()) if found else (404, b'{"detail":"Not Found"}')


def _metrics(state: State) -> str:
    gauges = {"vllm:num_requests_running": state.running, "vllm:num_requests_waiting": 0}
    return "".join(f"{name} {value}\n" for name, value in {**state.counters, **gauges}.items())


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, states: dict[str, State], slower: int
) -> None:
    """Answer one request, `slower` times as slowly as its script says."""
    begun = asyncio.get_running_loop().time()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.splitlines())}
    body: dict[str, Any] = {}
    if length := int(fields.get("content-length", "0")):
        body = json.loads(await reader.readexactly(length))
    _, name, path = head.split(" ", 2)[1].split("/", 2)
    script, state = scripts()[name], states.setdefault(name, State())
    if f"/{path}" != "/v1/chat/completions":
        status, content = document(script, state, f"/{path}", body)
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(content)))
        writer.write(content)
        await writer.drain()
        return
    state.completions += 1
    planned = reply(script, state.completions, body)
    for piece in planned.pieces:
        piece.at, piece.tokens = piece.at * slower, [(at * slower, number) for at, number in piece.tokens]
    entry = {"prompt": planned.prompt, "max_tokens": asked(body), "tokens": []}
    state.log.append(entry)
    state.running += 1
    whole = False
    try:
        await _send(script, planned, writer, begun, entry["tokens"])
        whole = True
    finally:
        state.finished(script, planned, whole=whole)
    if planned.end in ("stall", "open"):
        await reader.read()
    if planned.end == "reset":
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _send(
    script: Script, planned: Reply, writer: asyncio.StreamWriter, begun: float, sent: list[tuple[float, int]]
) -> None:
    loop = asyncio.get_running_loop()
    endless = bool(script.output) and script.output > 5000
    for piece in planned.pieces:
        if (wait := begun + piece.at - loop.time()) > 0:
            await asyncio.sleep(wait)
        late = max(0.0, loop.time() - begun - piece.at)
        writer.write(piece.content)
        sent += [(at + late, tokens) for at, tokens in piece.tokens]
        if script.split or endless:
            await writer.drain()
    await writer.drain()


def truth(runs: Sequence[Sequence[dict[str, Any]]]) -> dict[str, float]:
    """Return the right figures of runs, each a list of requests that were sent together: their medians."""
    each = [_truth(run) for run in runs]
    return {name: statistics.median(one[name] for one in each) for name in each[0]} if each else {}


def _truth(run: Sequence[dict[str, Any]]) -> dict[str, float]:
    groups = [_groups(request["tokens"]) for request in run]
    if not all(groups):
        return {}
    first = statistics.mean(one[0][0] for one in groups)
    prompt = statistics.mean(request["prompt"] for request in run)
    figures = {
        "first_token": 1000 * first,
        "output": statistics.mean(sum(tokens for _, tokens in one) for one in groups),
        "prompt": prompt,
    }
    if len(run) == 1:
        figures["prefill"] = prompt / first
    if all(len(one) > 1 for one in groups):
        rates = [sum(tokens for _, tokens in one[1:]) / (one[-1][0] - one[0][0]) for one in groups]
        gaps = [after[0] - before[0] for one in groups for before, after in itertools.pairwise(one)]
        figures |= {"decode": statistics.mean(rates), "longest_gap": 1000 * max(gaps)}
        if len(run) > 1:
            figures["total"] = sum(rates)
    return figures


def _groups(tokens: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return (time, tokens) of what was sent together."""
    groups: list[tuple[float, float]] = []
    for at, number in tokens:
        if groups and at - groups[-1][0] < 0.001:
            groups[-1] = (groups[-1][0], groups[-1][1] + number)
        else:
            groups.append((at, number))
    return groups


async def _main(port: int, slower: int = 1) -> None:
    states: dict[str, State] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer, states, slower)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(*map(int, sys.argv[1:] or ["0"])))
