"""HTTP requests to a model server or to a router in front of it, each limited in time and size."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import MAX_DEPTH, depth
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_unix_http import UnixConnection

# A response is judged by its first part; an endless stream must not fill this process.
MAX_RESPONSE_BYTES = 1 << 20
MAX_CHARACTERS = 500
MAX_LINES = 64
# A shorter key is a word such as EMPTY, which may be part of any response.
MIN_KEY_LENGTH = 8
# The end of a stream. A line break in a JSON text is escaped, so generated text cannot look like this line.
DONE = "[DONE]"
DONE_LINE = re.compile(rb"[\r\n]data: ?\[DONE\]")

# Host and port of the engine, or the path of its socket.
Server = tuple[str, int] | str
# A request has id, method, path, timeout_s, and optionally body, base, key_env, anonymous and prefix (see vllm_probe).
Request = Mapping[str, Any]
Response = dict[str, Any]


def send_all(
    server: Server, requests: Sequence[Request], key: str, env: Mapping[str, str] | None = None
) -> dict[str, Response]:
    """Send requests in order until the first one is not answered with 200 or any one has no complete response. Returns
    the responses by the id of the request."""
    responses: dict[str, Response] = {}
    for request in requests:
        responses[request["id"]] = response = send(server, request, key, env)
        # Without a complete response its gate fails, and later gates are not judged: more requests only take time.
        if "error" in response or (request is requests[0] and response.get("status") != http.client.OK):
            break
    return responses


def send(server: Server, request: Request, key: str, env: Mapping[str, str] | None = None) -> Response:
    """Send one request and return its response: status, json or the start of the text, seconds. For a stream: its
    events, whether it ended with [DONE], and the first part that is not JSON. Otherwise `error`. Returns within the
    request's timeout."""
    if request.get("key_env") and not (env or {}).get(request["key_env"]):
        return {"error": f"the env file has no {request['key_env']} to send", "seconds": 0.0}
    body = json.dumps(request["body"]) if request.get("body") else None
    streamed = bool((request.get("body") or {}).get("stream"))
    started_at = time.monotonic()
    connection, path, headers = connect(server, request, key, env)
    # The socket's own timeout restarts with every byte, so headers that arrive byte by byte would never time out.
    sockets: list[socket.socket] = []
    watchdog = threading.Timer(request["timeout_s"], shut_down, (sockets,))
    watchdog.daemon = True
    try:
        connection.connect()
        # http.client forgets the socket of a response that closes the connection.
        sockets.append(connection.sock)
        watchdog.start()
        connection.request(request["method"], path, body, headers)
        response = connection.getresponse()
        content = read_response(sockets[0], response, started_at + request["timeout_s"], streamed)
        raw = without_key(headers, content)
    except (OSError, http.client.HTTPException) as error:
        seconds = time.monotonic() - started_at
        late = isinstance(error, TimeoutError) or seconds >= request["timeout_s"]
        fault = f"no whole reply within {request['timeout_s']} s" if late else f"{type(error).__name__}: {error}"
        return {"error": fault[:MAX_CHARACTERS], "seconds": seconds}
    finally:
        watchdog.cancel()
        connection.close()
    # An error is one JSON document, also if a stream was requested.
    is_stream = streamed and response.status == http.client.OK
    return {
        "status": response.status,
        **(parse_stream(raw) if is_stream else parse_body(raw, request.get("prefix"))),
        "seconds": time.monotonic() - started_at,
    }


def connect(
    server: Server, request: Request, key: str, env: Mapping[str, str] | None = None
) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return (connection, path, headers). Another server than the engine gets the key that its request names, never
    the engine's key by default."""
    timeout, base_url = request["timeout_s"], request.get("base")
    bearer = (env or {}).get(request.get("key_env") or "") if base_url else key
    if request.get("anonymous"):
        bearer = ""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
    if not base_url:
        return engine(server, timeout), request["path"], headers
    base = urllib.parse.urlsplit(base_url)
    kind = http.client.HTTPSConnection if base.scheme == "https" else http.client.HTTPConnection
    return kind(base.hostname or "", base.port, timeout=timeout), base.path.rstrip("/") + request["path"], headers


def engine(server: Server, timeout_s: float) -> http.client.HTTPConnection:
    """Return the connection to the engine, which its first request opens."""
    if isinstance(server, str):
        return UnixConnection(server, timeout_s)
    return http.client.HTTPConnection(*server, timeout=timeout_s)


def without_key(headers: Mapping[str, str], raw: bytes) -> bytes:
    """Return a response without the key that was sent: a router may repeat it in its error."""
    bearer = headers.get("Authorization", "").removeprefix("Bearer ")
    return raw.replace(bearer.encode(), b"***") if len(bearer) >= MIN_KEY_LENGTH else raw


def shut_down(sockets: Sequence[socket.socket]) -> None:
    """End an exchange whose time is over."""
    for connected in sockets:
        with contextlib.suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)


def read_response(
    connected: socket.socket, response: http.client.HTTPResponse, deadline: float, streamed: bool = False
) -> bytes:
    """Return the body up to MAX_RESPONSE_BYTES. A stream ends with its last event, even if the server keeps the
    connection open. Raises TimeoutError at the deadline and IncompleteRead for a short body."""
    parts: list[bytes] = []
    size, tail = 0, b"\n"
    # The read of the last byte closes the response, and with it the socket of a connection that ends there (Python
    # 3.11.8, 3.12.2, 3.13 and newer). Older ones close it with the empty read that follows.
    while size < MAX_RESPONSE_BYTES and not response.isclosed():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        connected.settimeout(remaining)
        part = response.read1(min(1 << 16, MAX_RESPONSE_BYTES - size))
        if not part:
            if time.monotonic() >= deadline:
                raise TimeoutError
            if response.length:
                raise http.client.IncompleteRead(b"".join(parts), response.length)
            break
        parts.append(part)
        size += len(part)
        # The last line may arrive in parts.
        tail += part
        if streamed and DONE_LINE.search(tail):
            break
        tail = tail[-16:]
    return b"".join(parts)


def parse_body(raw: bytes, prefix: str | None = None) -> Response:
    """Return `json`, or None and the start of the `text`. With a prefix: the lines of the text that start with it."""
    text = raw.decode(errors="replace")
    if prefix:
        lines = [line[:MAX_CHARACTERS] for line in text.splitlines() if line.startswith(prefix)]
        return {"json": None, "text": "\n".join(lines[:MAX_LINES])}
    document = parse(text)
    return {"json": document, "text": "" if document is not None else text[:MAX_CHARACTERS]}


def parse_stream(raw: bytes) -> Response:
    """Return the events of a stream (WHATWG server-sent events, only data fields), up to the last or the first bad
    one."""
    events: list[Any] = []
    result: Response = {"json": None, "text": "", "events": events, "done": False, "bad": ""}
    for block in re.split(r"\n\n|\r\r|\r\n\r\n", raw.decode(errors="replace")):
        data = [line[5:].removeprefix(" ") for line in re.split(r"[\r\n]+", block) if line.startswith("data:")]
        text = "\n".join(data)
        if text == DONE:
            result["done"] = True
            break
        if not text:
            continue
        event = parse(text)
        if event is None:
            result["bad"] = text[:MAX_CHARACTERS]
            break
        events.append(event)
    return result


def parse(text: str) -> Any:
    """Return the JSON document; None if the text is not JSON or is nested deeper than MAX_DEPTH. NaN, infinity and half
    of a surrogate pair become text, because not every later parser accepts them."""
    try:
        document = json.loads(text, parse_constant=str, parse_float=finite)
        if depth(document) > MAX_DEPTH:
            return None
        return json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def finite(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text
