"""A stand-in for a Hugging Face hub with published models: real config.json, derived headers, and no weights.

Its replies have the form of the hub's. It can refuse, cut off, delay, redirect, ignore ranges, and lie.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from fakes import derived_headers

DATA = Path(__file__).parents[1] / "data" / "hub"
INFO = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/revision/(?P<revision>[^/]+)")
FILE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<commit>[^/]+)/(?P<path>.+)")

# The words by which a parser knows the format, in templates of our own.
TEMPLATES = {
    "qwen3-coder": "{% if tools %}<tool_call><function=name>{% endif %}{% if enable_thinking %}<think>{% endif %}",
    "hermes": '{% if tools %}<tool_call>{"name": 1}</tool_call>{% endif %}{% if enable_thinking %}<think>{% endif %}',
    "harmony": "{% if tools %}<|channel|>commentary{% endif %}<|channel|>analysis",
    "gemma4": "{% if tools %}<|tool>{% endif %}{% if enable_thinking %}<|channel>thought{% endif %}",
    "minimax": "{% if tools %}<minimax:tool_call>{% endif %}<think>",
}


@dataclass
class Repository:
    """A model at one commit. Of a safetensors file only the first bytes exist, and its size."""

    commit: str
    files: dict[str, bytes]
    sizes: dict[str, int] = field(default_factory=dict)

    def size(self, path: str) -> int:
        return self.sizes.get(path, len(self.files[path]))


@dataclass
class Fault:
    """What happens to a request whose path has `path` in it. `times` 0 is always."""

    path: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    delay_s: float = 0.0
    body: bytes | None = None
    whole: bool = False


def rows() -> list[dict[str, Any]]:
    """Return the models of tests/data/hub/models.yml."""
    found: list[dict[str, Any]] = yaml.load((DATA / "models.yml").read_text(), yaml.CSafeLoader)
    return found


@lru_cache
def repository(name: str) -> Repository:
    """Return a model of tests/data/hub."""
    row = next(row for row in rows() if row["model"] == name)
    folder = DATA / name.replace("/", "--")
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    files |= {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}", "README.md": b"a model\n"}
    if row["template"] != "none":
        files["chat_template.jinja"] = TEMPLATES[row["template"]].encode()
    result = Repository(hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest(), files)
    parts = list(_parts(row, files))
    index: dict[str, str] = {}
    for number, (names, start, size) in enumerate(parts, 1):
        path = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        files[path], result.sizes[path] = start, size
        index |= dict.fromkeys(names, path)
    document = {"metadata": {"total_size": sum(size for *_, size in parts)}, "weight_map": index}
    files["model.safetensors.index.json"] = json.dumps(document, indent=2).encode()
    return result


def _parts(row: Mapping[str, Any], files: Mapping[str, bytes]) -> Iterator[tuple[list[str], bytes, int]]:
    if "bytes" in row:
        for number in range(row["shards"]):
            start, _ = derived_headers.header({f"derived.{number}": ("BF16", (row["bytes"] // row["shards"] // 2,))})
            yield [f"derived.{number}"], start, row["bytes"] // row["shards"]
        return
    config = json.loads(files["config.json"])
    quantisation = config.get("quantization_config") or json.loads(files.get("hf_quant_config.json", b"{}"))
    model = derived_headers.Model(
        config, quantisation, row.get("widths", {}), row.get("vision", 0), row.get("head", False)
    )
    for part in derived_headers.shards(derived_headers.tensors(model), row["shards"]):
        start, size = derived_headers.header(part)
        yield list(part), start, size


class Hub(ThreadingHTTPServer):
    """`requests` has every path with its range, `sent` the bytes of all bodies. `token` is required if it is set."""

    daemon_threads = True

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.sent, self.token, self.redirects = 0, "", False
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: object) -> None:
        """Print nothing: a client may close a connection in the middle of a reply."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def find(self, name: str) -> Repository | None:
        if name in self.repositories:
            return self.repositories[name]
        return repository(name) if any(row["model"] == name for row in rows()) else None


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{path} {self.headers.get('Range', '')}".strip())
        fault = next((fault for fault in self.server.faults if fault.path in path), Fault())
        time.sleep(fault.delay_s)
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._reply(401, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"}, fault)
        if fault.status:
            return self._reply(fault.status, b"{}", fault.headers, fault)
        if fault.body is not None:
            return self._reply(200, fault.body, {}, fault)
        if info := INFO.fullmatch(path):
            return self._info(info["repository"], info["revision"], fault)
        if file := FILE.fullmatch(path.removeprefix("/cdn")):
            return self._file(file["repository"], file["path"], fault)
        return self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, fault)

    do_HEAD = do_GET  # noqa: N815  the name that http.server looks for

    def _info(self, name: str, revision: str, fault: Fault) -> None:
        found = self.server.find(name)
        if found is None:
            return self._reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, fault)
        if revision not in {"main", found.commit}:
            return self._reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, fault)
        siblings = [{"rfilename": path, "size": found.size(path), "blobId": "0" * 40} for path in found.files]
        body = json.dumps({"id": name, "sha": found.commit, "siblings": siblings}).encode()
        return self._reply(200, body, {"Content-Type": "application/json"}, fault)

    def _file(self, name: str, path: str, fault: Fault) -> None:
        found = self.server.find(name)
        if found is None or path not in found.files:
            return self._reply(404, b"", {"X-Error-Code": "EntryNotFound"}, fault)
        if self.server.redirects and not self.path.startswith("/cdn"):
            return self._reply(302, b"", {"Location": f"/cdn{self.path}"}, fault)
        content, size = found.files[path], found.size(path)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not match or fault.whole:
            return self._reply(200, content, {"Content-Length": str(size)}, fault)
        begin, end = int(match[1]), min(int(match[2]) + 1, size)
        # Weights do not exist here: what a range asks of them is zeros.
        body = content[begin:end] + bytes(max(0, end - max(begin, len(content))))
        return self._reply(206, body, {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}, fault)

    def _reply(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.server.sent += len(body[: fault.cut])
            self.wfile.write(body[: fault.cut])
        if fault.cut is not None or int(headers.get("Content-Length", len(body))) != len(body):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Log nothing: `requests` has every request."""


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve the models on the loopback device."""
    hub = Hub()
    Thread(target=hub.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
