"""Ollama on the host, over its HTTP API: list the models that it has loaded and unload them. Never kills a process.

An empty prompt with keep_alive 0 is Ollama's own request to unload (its docs/api.md), and what `ollama stop` sends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from vllm_spark.core.types import OllamaModel

# Where Ollama listens unless OLLAMA_HOST has another address.
URL = "http://127.0.0.1:11434"

# A list of models is a few kilobytes; another server on that port must not fill this process.
MAX_RESPONSE_BYTES = 1 << 20
MAX_CHARACTERS = 200

# Ollama answers /api/ps from memory.
LIST_TIMEOUT_S = 2.0
POLL_INTERVAL_S = 0.5

# Instead of an HTTP status: nothing listens on the port, and no complete response arrived.
NOT_LISTENING, NO_RESPONSE = -1, 0


class Response(NamedTuple):
    """Status and body of a response; or NOT_LISTENING or NO_RESPONSE, and the reason."""

    status: int
    body: bytes


class StillLoadedError(Exception):
    """The deadline passed with models loaded: their names, and Ollama's error responses to the requests by name."""

    def __init__(self, models: list[str], errors: dict[str, str]) -> None:
        self.models, self.errors = models, errors
        super().__init__(", ".join(models))


def loaded(url: str = URL, timeout_s: float = LIST_TIMEOUT_S) -> list[OllamaModel] | None:
    """Return the models that Ollama has in memory, or None if no Ollama answers."""
    return _list_models(url, timeout_s)[1]


def unload_all(url: str, deadline_s: float) -> list[str]:
    """Unload every loaded model and wait until Ollama lists none. Returns the names of the models. Raises
    StillLoadedError at the deadline."""
    end = time.monotonic() + deadline_s
    models: list[str] = []
    errors: dict[str, str] = {}
    while True:
        status, entries = _list_models(url, LIST_TIMEOUT_S)
        # A busy Ollama still has its models: the request is repeated. If nothing listens, nothing is loaded.
        if entries == [] or status == NOT_LISTENING:
            return sorted(errors)
        models = [entry["name"] for entry in entries] if entries else models
        for name in models:
            if name not in errors:
                errors[name] = _unload(url, name, max(POLL_INTERVAL_S, end - time.monotonic()))
        if time.monotonic() >= end:
            raise StillLoadedError(models, errors)
        time.sleep(POLL_INTERVAL_S)


def _list_models(url: str, timeout_s: float) -> tuple[int, list[OllamaModel] | None]:
    """Return (status, models or None) of /api/ps."""
    status, body = _request(url, "GET", "/api/ps", None, timeout_s)
    if status != http.client.OK:
        return status, None
    try:
        entries = json.loads(body)["models"] or []  # some versions send null for the empty list
        return status, [
            {"name": str(entry.get("name") or entry["model"]), "bytes": int(entry.get("size") or 0)}
            for entry in entries
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return status, None  # another server listens there


def _unload(url: str, name: str, timeout_s: float) -> str:
    """Request that a model is unloaded. Returns the error, or an empty text."""
    request = json.dumps({"model": name, "keep_alive": 0, "stream": False})
    status, body = _request(url, "POST", "/api/generate", request, timeout_s)
    if status == http.client.OK:
        return ""
    return " ".join(f"{status if status > 0 else 'nothing:'} {body.decode(errors='replace')[:MAX_CHARACTERS]}".split())


def _request(url: str, method: str, path: str, body: str | None, timeout_s: float) -> Response:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    watchdog = None
    try:
        connection.connect()
        # The socket's timeout is that of one read, and a server may send byte by byte.
        watchdog = threading.Timer(timeout_s, _shut_down, (connection.sock,))
        watchdog.daemon = True
        watchdog.start()
        connection.request(method, path, body=body, headers={"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return Response(response.status, response.read(MAX_RESPONSE_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        status = NOT_LISTENING if isinstance(error, ConnectionRefusedError) else NO_RESPONSE
        return Response(status, str(error).encode())
    finally:
        if watchdog:
            watchdog.cancel()
        connection.close()


def _shut_down(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
