"""Serve files of named models as byte ranges over HTTP, to clients that have the secret of the run. Runs on the host.

GET /FOLDER/COMMIT is the manifest, GET /FOLDER/COMMIT/PATH with a Range is a part of a file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from http import HTTPStatus
from threading import Event
from urllib.parse import unquote

from vllm_spark.node.pull.files import LinkError
from vllm_spark.node.pull.hub_cache import HubRequest
from vllm_spark.node.pull.job import SERVING, JobError, JobProgress
from vllm_spark.node.pull.model_files import FileEntry, Manifest, Source, source_of
from vllm_spark.node.pull.peer_server import PeerHandler, PeerServer

# A server without a request for this long was left behind by a run that was killed.
IDLE_TIMEOUT_S = 900.0


class FileServerRequest(HubRequest, total=False):
    """Models to serve on one address of the fabric. `token` is the secret of the run, which is never sent.
    `idle_timeout_s` ends the server without a request."""

    address: str
    port: int
    token: str
    idle_timeout_s: float


class ModelHandler(PeerHandler):
    """A request for the manifest or a file of a model."""

    server: RangeServer

    def answer(self) -> None:
        path = unquote(self.path.lstrip("/"))
        if path in self.server.manifests:
            return self.reply(HTTPStatus.OK, self.server.manifests[path].to_json().encode())
        if path not in self.server.files:
            return self.reply(HTTPStatus.NOT_FOUND)
        model, entry = self.server.files[path]
        try:
            descriptor = model.open(entry)
        except (OSError, LinkError) as error:
            return self.reply(HTTPStatus.GONE, str(error).encode())
        return self.send_file(descriptor)


class RangeServer(PeerServer):
    """Serves the files of models read-only."""

    handler: type[PeerHandler] = ModelHandler

    def __init__(
        self, address: tuple[str, int], secret: str, models: Mapping[str, tuple[Source, Manifest]] | None = None
    ) -> None:
        self.manifests: dict[str, Manifest] = {}
        self.files: dict[str, tuple[Source, FileEntry]] = {}
        self.add(models or {})
        super().__init__(address, self.handler, secret)

    def add(self, models: Mapping[str, tuple[Source, Manifest]]) -> None:
        """Serve models too: FOLDER/COMMIT -> the model and its manifest. Raises LinkError if a file leads out."""
        for path, (model, manifest) in models.items():
            self.manifests[path] = manifest
            for entry in manifest.files:
                os.close(model.open(entry))
                self.files[f"{path}/{entry.path}"] = (model, entry)

    def sums(self) -> dict[str, str]:
        """Return the sha256 of each manifest by FOLDER/COMMIT."""
        return {path: manifest.sha256 for path, manifest in self.manifests.items()}


def serve(
    start: Callable[[], RangeServer], progress: JobProgress, stop: Event, idle_timeout_s: float
) -> dict[str, int]:
    """Serve until stopped, or until no proven request came for the idle timeout. Return the bytes of files `sent`.

    The phase "serving" in the progress tells the controller that the port is open. Raises JobError if it is taken.
    """
    try:
        server = start()
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise JobError("port-taken", f"another process listens on this port: {error}") from error
    with server.running():
        progress.manifests = server.sums()
        progress.enter(SERVING, 0)
        server.wait(stop, idle_timeout_s)
    return {"sent": server.sent}


def serve_files(request: FileServerRequest, progress: JobProgress, stop: Event) -> dict[str, int]:
    """Serve until stopped, or until no request came for the idle timeout. Raises JobError without a manifest."""
    models = {}
    for ref in request["sources"]:
        model = source_of(request["hub"], ref)
        manifest = model.stored_manifest()
        if manifest is None:
            raise JobError("no-manifest", f"{model.manifest_file} does not exist")
        models[f"{model.folder}/{model.commit}"] = (model, model.accept(manifest))
    address = (request["address"], request["port"])
    timeout_s = float(request.get("idle_timeout_s", IDLE_TIMEOUT_S))
    return serve(lambda: RangeServer(address, request["token"], models), progress, stop, timeout_s)
