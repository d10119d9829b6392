"""Ollama on the box, over its HTTP API: which models it has loaded, and having it unload one. Nothing is ever killed.

An empty prompt with keep_alive 0 is Ollama's own way to unload (its docs/api.md), and what `ollama stop` sends.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from urllib.parse import urlsplit

# Where Ollama listens unless OLLAMA_HOST says otherwise.
URL = "http://127.0.0.1:11434"

# A list of models is a few kilobytes; whatever else listens on that port must not fill this process.
MAX_REPLY_BYTES = 1 << 20
SHOWN = 200

# It answers /api/ps from memory.
ASK_S = 2
POLL_S = 0.5

# Instead of a status: nobody listens, and no whole reply.
NOBODY, NO_REPLY = -1, 0


class StillLoadedError(Exception):
    """The deadline passed with models loaded: the names, and what Ollama said to the requests, by name."""

    def __init__(self, models, said):
        self.models, self.said = models, said
        super().__init__(", ".join(models))


def loaded(url=URL, timeout_s=ASK_S):
    """[{name, bytes}] of what Ollama has in memory, or None where no Ollama answers."""
    return _listed(url, timeout_s)[1]


def unload_all(url, deadline_s):
    """Have every loaded model unloaded and wait until Ollama lists none; the names of those asked for. Raises
    StillLoadedError at the deadline."""
    end = time.monotonic() + deadline_s
    models, said = [], {}
    while True:
        status, entries = _listed(url, ASK_S)
        # Busy is not gone: without an answer it is asked again, and without anybody who listens nothing is loaded.
        if entries == [] or status == NOBODY:
            return sorted(said)
        models = [entry["name"] for entry in entries] if entries else models
        for name in models:
            if name not in said:
                said[name] = _unload(url, name, max(POLL_S, end - time.monotonic()))
        if time.monotonic() >= end:
            raise StillLoadedError(models, said)
        time.sleep(POLL_S)


def _listed(url, timeout_s):
    """(status, models or None) of /api/ps."""
    status, body = _request(url, "GET", "/api/ps", None, timeout_s)
    if status != http.client.OK:
        return status, None
    try:
        entries = json.loads(body)["models"] or []  # null where the list is empty, in some versions
        return status, [
            {"name": str(entry.get("name") or entry["model"]), "bytes": int(entry.get("size") or 0)}
            for entry in entries
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return status, None  # something else listens there


def _unload(url, name, timeout_s):
    """What went wrong, or nothing."""
    body = json.dumps({"model": name, "keep_alive": 0, "stream": False})
    status, reply = _request(url, "POST", "/api/generate", body, timeout_s)
    if status == http.client.OK:
        return ""
    return " ".join(f"{status if status > 0 else 'nothing:'} {reply.decode(errors='replace')[:SHOWN]}".split())


def _request(url, method, path, body, timeout_s):
    """(status, body) of a request, or (NOBODY or NO_REPLY, why)."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port or 80, timeout=timeout_s)
    watchdog = None
    try:
        connection.connect()
        # The timeout is of one read, and a server may drip.
        watchdog = threading.Timer(timeout_s, _cut, (connection.sock,))
        watchdog.daemon = True
        watchdog.start()
        connection.request(method, path, body=body, headers={"Content-Type": "application/json"} if body else {})
        reply = connection.getresponse()
        return reply.status, reply.read(MAX_REPLY_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return NOBODY if isinstance(error, ConnectionRefusedError) else NO_REPLY, str(error).encode()
    finally:
        if watchdog:
            watchdog.cancel()
        connection.close()


def _cut(opened):
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
