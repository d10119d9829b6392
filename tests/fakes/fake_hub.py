"""A fake Hugging Face hub: the models of a folder, each at one commit, over HTTP.

    fake_hub.py FOLDER ADDRESS PORT        FOLDER/OWNER/NAME/COMMIT/files

It serves the requests of huggingface_hub for a model: the list of files of a commit, and files whole or in part. Files
of more than LARGE bytes have a sha256, as LFS files do; smaller ones have git's hash. Large files also have the headers
of xet, so hf_xet, the client of the hub's library, fetches them from the store of chunks that is served below /cas
(huggingface/xet-core, spec/api.md). It uses only the standard library, because molecule/offline runs it on a Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 1000
INFO = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/(?P<kind>revision|tree)/(?P<commit>[0-9a-f]{40})/?")
FILE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<commit>[0-9a-f]{40})/(?P<path>.+)")
# huggingface_hub takes xet's address and token from here, whatever the token of the reader.
XET_TOKEN = re.compile(r"/api/models/[^/]+/[^/]+/xet-read-token/[0-9a-f]{40}")
# hf_xet 1.2 asks without the version, 1.8 first asks v2 and then v1.
CHUNKS_OF = re.compile(r"/cas/(v1/)?reconstructions/(?P<xet>[0-9a-f]{64})")
CHUNKS = re.compile(r"/cas/chunks/(?P<xet>[0-9a-f]{64})/(?P<number>\d+)")
CHUNK_BYTES = 64 << 10
# The chunks of one request.
GROUP_BYTES = 16 << 20


def listing(file: Path, root: Path) -> dict[str, Any]:
    content = file.read_bytes()
    entry = {"path": str(file.relative_to(root)), "size": len(content)}
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if len(content) <= LARGE:
        return {**entry, "oid": oid}
    sha256 = hashlib.sha256(content).hexdigest()
    return {**entry, "oid": oid, "sha256": sha256, "xet": hashlib.sha256(f"xet {sha256}".encode()).hexdigest()}


def as_chunks(content: bytes) -> bytes:
    """Return bytes as xet's chunks, each with a header of eight bytes: version, size, no compression, size."""
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    sizes = [len(chunk).to_bytes(3, "little") for chunk in chunks]
    return b"".join(b"\0" + size + b"\0" + size + chunk for size, chunk in zip(sizes, chunks, strict=True))


class Hub(ThreadingHTTPServer):
    """`requests` has every method and path with its range. `damage` is a path that is sent damaged `damages` times.

    As the hub does, it redirects files with a sha256 to another address if `redirects`. `answers` are statuses with
    headers for the next requests of files. `cuts` are numbers of bytes after which the next contents end. `token` is
    required if it is set. `longer` is a path that is sent with bytes that the list does not have. Without `xet` every
    file comes over plain HTTP, as from a mirror.
    """

    daemon_threads = True

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        self.folder, self.requests, self.damage, self.damages = folder, [], "", 0
        self.redirects, self.token, self.longer, self.xet = False, "", "", True
        # xet's hash of a file -> the file
        self.stored: dict[str, Path] = {}
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.cuts: list[int] = []
        # The client fetches several files at once.
        self.lock = Lock()
        super().__init__(address, _Handler)

    def path_of(self, xet: str) -> str:
        """Return the path of a file in its repository."""
        owner_name_commit = 3
        return "/".join(self.stored[xet].relative_to(self.folder).parts[owner_name_commit:])

    def sent(self) -> Counter[str]:
        """Return how often the content of each file was asked for since the last call, here or in xet's store."""
        counts: Counter[str] = Counter()
        for line in self.requests:
            method, path, *_ = line.split()
            if asked := CHUNKS.fullmatch(path):
                counts[self.path_of(asked["xet"])] += 1
            elif method == "GET" and (asked := FILE.fullmatch(path.removeprefix("/cdn"))):
                counts[asked["path"]] += 1
        self.requests.clear()
        return counts

    def handle_error(self, *_: object) -> None:
        """Print nothing: a client may close a connection in the middle of a reply."""

    def next_answer(self) -> tuple[int, dict[str, str]] | None:
        """Take the next of `answers`."""
        with self.lock:
            return self.answers.pop(0) if self.answers else None

    def next_cut(self, size: int) -> int | None:
        """Take the next of `cuts`, if it cuts a content of this size."""
        with self.lock:
            return self.cuts.pop(0) if self.cuts and size > self.cuts[0] else None


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if path.startswith("/cas/"):
            self._xet(path)
        elif self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            self._reply(401, b'{"error": "Invalid username or password."}', {})
        else:
            self._answer(path)

    do_HEAD = do_GET  # noqa: N815  the name that http.server looks for

    def _answer(self, path: str) -> None:
        if XET_TOKEN.fullmatch(path):
            names = ("X-Xet-Cas-Url", "X-Xet-Access-Token", "X-Xet-Token-Expiration")
            return self._reply(200, b"", dict(zip(names, (f"{self._url()}/cas", "any", "4102444800"), strict=True)))
        if info := INFO.fullmatch(path):
            return self._info(info["repository"], info["commit"], info["kind"])
        if file := FILE.fullmatch(path.removeprefix("/cdn")):
            if self.command == "GET" and (answer := self.server.next_answer()):
                return self._reply(answer[0], b"{}", answer[1])
            return self._file(file["repository"], file["commit"], file["path"])
        return self._reply(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def _root(self, repository: str, commit: str) -> Path:
        return self.server.folder / repository / commit

    def _info(self, repository: str, commit: str, kind: str) -> None:
        root = self._root(repository, commit)
        if not root.is_dir():
            return self._reply(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        files = [listing(file, root) for file in sorted(root.rglob("*")) if file.is_file()]
        self.server.stored |= {file["xet"]: root / file["path"] for file in files if "xet" in file}
        reply: Any = {
            "id": repository,
            "sha": commit,
            "siblings": [
                {
                    "rfilename": file["path"],
                    "size": file["size"],
                    "blobId": file["oid"],
                    **({"lfs": self._lfs(file)} if "sha256" in file else {}),
                }
                for file in files
            ],
        }
        if kind == "tree":
            reply = [
                {
                    "type": "file",
                    "path": file["path"],
                    "size": file["size"],
                    "oid": file["oid"],
                    **({"lfs": {**self._lfs(file), "oid": file["sha256"]}} if "sha256" in file else {}),
                    **({"xetHash": file["xet"]} if "xet" in file and self.server.xet else {}),
                }
                for file in files
            ]
        return self._reply(200, json.dumps(reply).encode(), {"Content-Type": "application/json"})

    def _lfs(self, file: dict[str, Any]) -> dict[str, Any]:
        return {"sha256": file["sha256"], "size": file["size"], "pointerSize": 130}

    def _file(self, repository: str, commit: str, path: str) -> None:
        root = self._root(repository, commit)
        if not (root / path).is_file():
            return self._reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        file, content = listing(root / path, root), self._content(root / path, path)
        headers = {"ETag": f'"{file.get("sha256", file["oid"])}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.server.xet and "xet" in file:
            self.server.stored[file["xet"]] = root / path
            route = f"{self._url()}/api/models/{repository}/xet-read-token/{commit}"
            headers |= {"X-Xet-Hash": file["xet"], "X-Xet-Refresh-Route": route, "Link": f'<{route}>; rel="xet-auth"'}
        if self.server.redirects and "sha256" in file and not self.path.startswith("/cdn"):
            linked = {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(file["size"])}
            return self._reply(302, b"", {**headers, **linked, "Location": f"/cdn{self.path}"})
        return self._part(content, headers)

    def _content(self, file: Path, path: str) -> bytes:
        """Return the bytes that are sent for a path of a model."""
        content = file.read_bytes()
        if path == self.server.longer:
            content += b"more"
        if path == self.server.damage and self.server.damages and self.command == "GET":
            self.server.damages -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        return content

    def _range(self, size: int) -> tuple[int, int] | None:
        """Return the first byte of the request's range and the byte after its last, or None without a range."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        return (int(match[1]), min(int(match[2] or size - 1) + 1, size)) if match else None

    def _part(self, content: bytes, headers: dict[str, str]) -> None:
        if not (asked := self._range(len(content))):
            return self._reply(200, content, headers)
        begin, end = asked
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return self._reply(206, content[begin:end], headers)

    def _url(self) -> str:
        return f"http://{self.headers['Host']}"

    def _xet(self, path: str) -> None:
        """Answer as xet's store: where the chunks of a file are, and the chunks."""
        if (asked := CHUNKS_OF.fullmatch(path)) and asked["xet"] in self.server.stored:
            return self._chunks_of(asked["xet"])
        if asked := CHUNKS.fullmatch(path):
            return self._chunks(asked["xet"], int(asked["number"]))
        return self._reply(404, b"", {})

    def _chunks_of(self, xet: str) -> None:
        """Reply where the chunks of a part of a file are: each group of them under its own hash and address."""
        size = self.server.stored[xet].stat().st_size
        begin, end = self._range(size) or (0, size)
        if begin >= size:
            return self._reply(416, b"", {})
        terms, places = [], {}
        for number in range(begin // GROUP_BYTES, -(-end // GROUP_BYTES)):
            group = min(GROUP_BYTES, size - number * GROUP_BYTES)
            count, name = -(-group // CHUNK_BYTES), hashlib.sha256(f"{xet} {number}".encode()).hexdigest()
            chunks, sent = {"start": 0, "end": count}, {"start": 0, "end": group + 8 * count - 1}
            terms.append({"hash": name, "unpacked_length": group, "range": chunks})
            places[name] = [{"range": chunks, "url": f"{self._url()}/cas/chunks/{xet}/{number}", "url_range": sent}]
        reply = {"offset_into_first_range": begin % GROUP_BYTES, "terms": terms, "fetch_info": places}
        return self._reply(200, json.dumps(reply).encode(), {"Content-Type": "application/json"})

    def _chunks(self, xet: str, number: int) -> None:
        file = self.server.stored[xet]
        content = self._content(file, self.server.path_of(xet))[number * GROUP_BYTES :][:GROUP_BYTES]
        return self._part(as_chunks(content), {})

    def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: self.server.next_cut(len(body))])

    def log_message(self, *_: object) -> None:
        """Log nothing: `requests` has every request."""


if __name__ == "__main__":
    Hub(Path(sys.argv[1]), (sys.argv[2], int(sys.argv[3]))).serve_forever()
