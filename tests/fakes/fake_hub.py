"""A fake Hugging Face hub: the models of a folder, each at one commit, over HTTP.

    fake_hub.py FOLDER ADDRESS PORT        FOLDER/OWNER/NAME/COMMIT/files

It serves the requests of huggingface_hub for a model: the list of files of a commit, and files whole or in part. Files
of more than LARGE bytes have a sha256, as LFS files do; smaller ones have git's hash. It uses only the standard
library, because molecule/offline runs it on a Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 1000
INFO = re.compile(r"/api/models/(?P<repository>[^/]+/[^/]+)/(?P<kind>revision|tree)/(?P<commit>[0-9a-f]{40})/?")
FILE = re.compile(r"/(?P<repository>[^/]+/[^/]+)/resolve/(?P<commit>[0-9a-f]{40})/(?P<path>.+)")


def listing(file: Path, root: Path) -> dict[str, Any]:
    content = file.read_bytes()
    entry = {"path": str(file.relative_to(root)), "size": len(content)}
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    large = {"sha256": hashlib.sha256(content).hexdigest()} if len(content) > LARGE else {}
    return {**entry, "oid": oid, **large}


class Hub(ThreadingHTTPServer):
    """`requests` has every method and path with its range. `damage` is a path that is sent damaged `damages` times.

    As the hub does, it redirects files with a sha256 to another address if `redirects`. `answers` are statuses with
    headers for the next requests of files. `cuts` are numbers of bytes after which the next contents end. `token` is
    required if it is set. `longer` is a path that is sent with bytes that the list does not have.
    """

    daemon_threads = True

    def __init__(self, folder: Path, address: tuple[str, int]) -> None:
        self.folder, self.requests, self.damage, self.damages = folder, [], "", 0
        self.redirects, self.token, self.longer = False, "", ""
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.cuts: list[int] = []
        # The client fetches several files at once.
        self.lock = Lock()
        super().__init__(address, _Handler)

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
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._reply(401, b'{"error": "Invalid username or password."}', {})
        if info := INFO.fullmatch(path):
            return self._info(info["repository"], info["commit"], info["kind"])
        if file := FILE.fullmatch(path.removeprefix("/cdn")):
            if self.command == "GET" and (answer := self.server.next_answer()):
                return self._reply(answer[0], b"{}", answer[1])
            return self._file(file["repository"], file["commit"], file["path"])
        return self._reply(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815  the name that http.server looks for

    def _root(self, repository: str, commit: str) -> Path:
        return self.server.folder / repository / commit

    def _info(self, repository: str, commit: str, kind: str) -> None:
        root = self._root(repository, commit)
        if not root.is_dir():
            return self._reply(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        files = [listing(file, root) for file in sorted(root.rglob("*")) if file.is_file()]
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
        file, content = listing(root / path, root), (root / path).read_bytes()
        if path == self.server.longer:
            content += b"more"
        if path == self.server.damage and self.server.damages and self.command == "GET":
            self.server.damages -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        headers = {"ETag": f'"{file.get("sha256", file["oid"])}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if self.server.redirects and "sha256" in file and not self.path.startswith("/cdn"):
            linked = {"X-Linked-ETag": headers["ETag"], "X-Linked-Size": str(file["size"])}
            return self._reply(302, b"", {**headers, **linked, "Location": f"/cdn{self.path}"})
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return self._reply(200, content, headers)
        begin, end = int(match[1]), int(match[2] or len(content) - 1) + 1
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        return self._reply(206, content[begin:end], headers)

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
