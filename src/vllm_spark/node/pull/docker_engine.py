"""Requests to Docker's HTTP API on its socket: a short JSON reply, or a stream of events. Runs on the host.

An error after the start of a stream comes as an event, with the status 200 (docs.docker.com/reference/api/engine).
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any
from urllib.parse import quote, urlencode

from vllm_spark.node.unix_http import UnixConnection

SOCKET = os.environ.get("VLLM_SPARK_DOCKER_SOCKET", "/var/run/docker.sock")
TIMEOUT_S = 30.0
# A stream is silent while the containerd store unpacks a layer.
SILENCE_S = 3600.0
STOP_INTERVAL_S = 0.2
MAX_REPLY_BYTES = 8 << 20
MAX_LINE_BYTES = 1 << 20
# A push needs the header, also without a login.
NO_LOGIN = {"X-Registry-Auth": "e30="}

DockerEvent = Mapping[str, Any]


class EngineError(Exception):
    """The engine does not answer, or answers with an error."""


def get(path: str) -> Any:
    """Return the JSON of a GET, None for a 404. Raises EngineError."""
    with _response("GET", path, TIMEOUT_S) as response:
        if response.status == http.client.NOT_FOUND:
            return None
        return _json(path, _checked(path, response).read(MAX_REPLY_BYTES))


def info() -> Mapping[str, Any]:
    """Return the engine's own description, as `docker info` prints it. Raises EngineError."""
    return dict(get("/info") or {})


def image(name: str) -> Mapping[str, Any] | None:
    """Return an image as `docker image inspect` prints it, None if Docker does not have it. Raises EngineError."""
    found: Mapping[str, Any] | None = get(f"/images/{quote(name)}/json")
    return found


def pull(repository: str, reference: str, platform: str, stop: Event) -> Iterator[DockerEvent]:
    """Pull REPOSITORY by a tag or a digest and yield Docker's events. Raises EngineError."""
    query = urlencode({"fromImage": repository, "tag": reference, "platform": platform})
    yield from _stream(f"/images/create?{query}", stop)


def push(repository: str, tag: str, stop: Event) -> Iterator[DockerEvent]:
    """Push REPOSITORY:TAG and yield Docker's events. Raises EngineError."""
    yield from _stream(f"/images/{quote(repository)}/push?{urlencode({'tag': tag})}", stop)


def _stream(path: str, stop: Event) -> Iterator[DockerEvent]:
    """Yield the events of a POST. `stop` closes the connection, which makes Docker cancel the work."""
    with _response("POST", path, SILENCE_S, stop) as response:
        while line := _checked(path, response).readline(MAX_LINE_BYTES):
            event = _json(path, line)
            if not isinstance(event, dict):
                raise EngineError(f"{path}: {line[:100]!r} is not an event")
            if fault := event.get("error") or (event.get("errorDetail") or {}).get("message"):
                raise EngineError(" ".join(str(fault).split()))
            yield event


@contextmanager
def _response(
    method: str, path: str, timeout_s: float, stop: Event | None = None
) -> Iterator[http.client.HTTPResponse]:
    """Yield the response of a request. Errors of the connection become EngineError, also while it is read."""
    # Only root writes in this path, so a link in it may be followed.
    connection, ended = UnixConnection(os.path.realpath(SOCKET), timeout_s), Event()
    try:
        connection.request(method, path, headers=NO_LOGIN if method == "POST" else {})
        if stop:
            # http.client forgets the socket of a response that closes the connection.
            Thread(target=_close_on_stop, args=(connection.sock, stop, ended), daemon=True).start()
        yield connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"{SOCKET}: {getattr(error, 'strerror', None) or error or type(error).__name__}") from error
    finally:
        ended.set()
        connection.close()


def _close_on_stop(connected: socket.socket, stop: Event, ended: Event) -> None:
    while not ended.wait(STOP_INTERVAL_S):
        if stop.is_set():
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
            return


def _checked(path: str, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
    if response.status == http.client.OK:
        return response
    body = response.read(MAX_REPLY_BYTES)
    with suppress(ValueError, RecursionError, AttributeError):
        body = str(json.loads(body).get("message", "")).encode()
    raise EngineError(f"{path.partition('?')[0]}: status {response.status}: {body.decode(errors='replace')[:300]}")


def _json(path: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{path.partition('?')[0]}: {body[:100]!r} is not JSON") from error
