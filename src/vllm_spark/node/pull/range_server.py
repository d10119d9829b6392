"""Serve files of named models as byte ranges over HTTP, to clients that have the secret of the run. Runs on the host.

GET /FOLDER/COMMIT is the manifest, GET /FOLDER/COMMIT/PATH with a Range is a part of a file.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from threading import Event
from urllib.parse import unquote

from vllm_spark.node.pull.files import LinkError
from vllm_spark.node.pull.hub_cache import HubRequest
from vllm_spark.node.pull.job import JobError, JobProgress
from vllm_spark.node.pull.model_files import Entry, Manifest, Source, source_of
from vllm_spark.node.pull.partial_file import CHUNK_BYTES
from vllm_spark.node.pull.peer_server import PeerHandler, PeerServer, SentBytes, serve

# A server without a request for this long was left behind by a run that was killed.
IDLE_TIMEOUT_S = 900.0
RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})")


class FileServerRequest(HubRequest, total=False):
    """Models to serve on one address of the fabric. `token` is the secret of the run, which is never sent.
    `idle_timeout_s` ends the server without a request."""

    address: str
    port: int
    token: str
    idle_timeout_s: float


class RangeServer(PeerServer):
    """Serves the files of models read-only. `models`: FOLDER/COMMIT -> the model and its manifest.

    Raises LinkError if a file leads out of its model.
    """

    def __init__(self, address: tuple[str, int], secret: str, models: Mapping[str, tuple[Source, Manifest]]) -> None:
        self.manifests = {path: manifest for path, (_, manifest) in models.items()}
        self.files: dict[str, tuple[Source, Entry]] = {
            f"{path}/{entry.path}": (model, entry)
            for path, (model, manifest) in models.items()
            for entry in manifest.files
        }
        for model, entry in self.files.values():
            os.close(model.open(entry))
        super().__init__(address, _Handler, secret)


class _Handler(PeerHandler):
    server: RangeServer

    def answer(self) -> None:
        path = unquote(self.path.lstrip("/"))
        if path in self.server.manifests:
            return self.reply(HTTPStatus.OK, json.dumps(self.server.manifests[path].to_json()).encode())
        if path not in self.server.files:
            return self.reply(HTTPStatus.NOT_FOUND)
        return self._send_range(*self.server.files[path])

    def _send_range(self, model: Source, entry: Entry) -> None:
        try:
            descriptor = model.open(entry)
        except (OSError, LinkError) as error:
            return self.reply(HTTPStatus.GONE, str(error).encode())
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            match = RANGE.fullmatch(self.headers.get("Range", f"bytes=0-{size - 1}"))
            begin, end = (int(match[1]), int(match[2]) + 1) if match else (0, 0)
            if not 0 <= begin < end <= size:
                return self.reply(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"the file has {size} bytes".encode())
            self.send_response(HTTPStatus.PARTIAL_CONTENT)
            self.send_header("Content-Length", str(end - begin))
            self.end_headers()
            self.wfile.flush()
            while begin < end:
                # The kernel copies from the page cache to the socket, without a copy in Python.
                sent = self.connection.sendfile(file, begin, min(CHUNK_BYTES, end - begin))
                if not sent:
                    # The file became shorter. The closed connection tells the client that the range is incomplete.
                    self.close_connection = True
                    return None
                begin += sent
                self.server.sent += sent
                self.server.last_request_at = time.monotonic()
            return None


def serve_files(request: FileServerRequest, progress: JobProgress, stop: Event) -> SentBytes:
    """Serve until stopped, or until no request came for the idle timeout. Raises JobError without a manifest."""
    models = {}
    for ref in request["sources"]:
        model = source_of(request["hub"], ref)
        manifest = model.stored_manifest()
        if manifest is None:
            raise JobError("no-manifest", f"{model.manifest_file} does not exist")
        models[f"{model.folder}/{model.commit}"] = (model, model.accept(manifest))
    return serve(
        lambda: RangeServer((request["address"], request["port"]), request["token"], models),
        progress,
        stop,
        float(request.get("idle_timeout_s", IDLE_TIMEOUT_S)),
        {path: manifest.sha256 for path, (_, manifest) in models.items()},
    )
