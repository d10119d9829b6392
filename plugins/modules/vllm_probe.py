#!/usr/bin/python
"""One look at a model server from its own box: unit, container, log, and what it answers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_probe
short_description: Look at a model server from its own box, in one round trip
description:
  - Reads the unit's state, the container and the engine's log, and puts requests to the API. The first
    request decides whether the others are put. Changes nothing.
author: vllm-spark
options:
  unit:
    description: The unit to read.
    type: str
    required: true
  container:
    description: The container to read.
    type: str
    required: true
  address:
    description: Where the API answers on its own box.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the API.
    type: int
    required: true
  state_path:
    description: Where the supervisor of a pair's rank keeps its state.
    type: path
  env_path:
    description: The env file. Its VLLM_API_KEY and what a request's key_env names are sent and never returned.
    type: path
    required: true
  requests:
    description:
      - What to ask, in order. The rest is left out if the first does not answer 200, or after any that gets
        no whole reply.
      - 'Keys of each: id, method, path, body, timeout_s. base: URL of another server, which does not get
        the key of the engine. key_env: name of the variable in the env file whose value that server gets instead.
        prefix: of a text, return the lines that begin so. A body with stream: true is read as events.'
    type: list
    elements: dict
    default: []
  cursor:
    description: Journal position after which to read; empty for the start of this run of the unit.
    type: str
    default: ""
  max_lines:
    description: How many log lines to return at most.
    type: int
    default: 4000
attributes:
  check_mode:
    support: full
    description: It only reads.
"""

EXAMPLES = r"""
- name: Look at the server
  vllm_probe:
    unit: vllm@demo.service
    container: vllm-demo
    port: 8000
    env_path: /etc/vllm-spark/demo/env
"""

RETURN = r"""
probe:
  description: unit, container, state, lines, cursor, running_s, responses.
  returned: always
  type: dict
"""

import contextlib
import http.client
import json
import math
import re
import socket
import subprocess
import threading
import time
import urllib.parse

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_docker import Docker, DockerError

PROPERTIES = ("ActiveState", "SubState", "Result", "NRestarts", "InvocationID", "ExecMainStatus",
              "ExecMainStartTimestampMonotonic")  # fmt: skip
CURSOR = "-- cursor: "
# A reply is judged by its first part; a server that streams for ever must not fill this process.
MAX_REPLY_BYTES = 1 << 20
SHOWN_TEXT = 500
SHOWN_LINES = 64
# A shorter one is a word like EMPTY, which may stand in any reply.
SHORTEST_KEY = 8
# No reply of an engine is nested that deep; what handles it later may go by recursion.
MAX_DEPTH = 64
# The end of a stream. In a JSON text a line break is escaped, so no text that was generated can look like it.
DONE = "[DONE]"
DONE_LINE = re.compile(rb"[\r\n]data: ?\[DONE\]")


def unit_state(unit):
    shown = subprocess.run(
        ["systemctl", "show", "--property", ",".join(PROPERTIES), unit],
        capture_output=True,
        text=True,
        check=False,
    )
    return dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)


def running_seconds(state):
    """Seconds since the engine's process started; both clocks are this kernel's."""
    started = int(state.get("ExecMainStartTimestampMonotonic") or 0)
    return max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - started / 1e6) if started else 0.0


def journal(unit, state, cursor, max_lines):
    """(lines, new cursor). Without a cursor: from the start of this run, which is where a log's verdicts are."""
    if not cursor and not state.get("InvocationID"):
        return [], ""
    words = [
        "journalctl",
        "--quiet",
        "--no-pager",
        "--output",
        "cat",
        "--show-cursor",
        f"_SYSTEMD_UNIT={unit}",
    ]
    words.append(f"--after-cursor={cursor}" if cursor else f"_SYSTEMD_INVOCATION_ID={state['InvocationID']}")
    lines = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace") as reader:
        for line in reader.stdout:
            if line.startswith(CURSOR):
                cursor = line[len(CURSOR) :].strip()
            elif len(lines) < max_lines:
                lines.append(line.rstrip("\n"))
            else:
                # A server that has run for a month: its start is what counts, so the rest stays unread.
                reader.kill()
                break
    return lines, cursor


def rank_state(path):
    """What the supervisor of a pair's rank says of itself; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, TypeError, ValueError):
        return {}


def variables(path):
    """The env file, name to value; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line and line[0] != "#")
    except FileNotFoundError:
        return {}


def ask(server, request, key, env=None):
    """One request: status, json or the start of the text, seconds; of a stream its events, whether it said that it
    is done, and the first piece that is no JSON; or the error in words. Ends by its timeout."""
    if request.get("key_env") and not (env or {}).get(request["key_env"]):
        return {"error": f"the env file has no {request['key_env']} to send", "seconds": 0.0}
    body = json.dumps(request["body"]) if request.get("body") else None
    streamed = bool((request.get("body") or {}).get("stream"))
    begun = time.monotonic()
    connection, path, headers = connect(server, request, key, env)
    # A socket's own timeout starts anew with every byte, so headers that drip would never end.
    watchdog = threading.Timer(request["timeout_s"], cut, (connection,))
    watchdog.daemon = True
    try:
        connection.connect()
        connection.opened = connection.sock
        watchdog.start()
        connection.request(request["method"], path, body, headers)
        reply = connection.getresponse()
        raw = without(headers, read_reply(connection.opened, reply, begun + request["timeout_s"], streamed))
    except (OSError, http.client.HTTPException) as error:
        seconds = time.monotonic() - begun
        late = isinstance(error, TimeoutError) or seconds >= request["timeout_s"]
        said = f"no whole reply within {request['timeout_s']} s" if late else f"{type(error).__name__}: {error}"
        return {"error": said[:SHOWN_TEXT], "seconds": seconds}
    finally:
        watchdog.cancel()
        connection.close()
    # A refusal comes as one JSON document, also where a stream was asked for.
    understood = understand_stream if streamed and reply.status == http.client.OK else understand
    return {
        "status": reply.status,
        **understood(raw, request.get("prefix")),
        "seconds": time.monotonic() - begun,
    }


def connect(server, request, key, env=None):
    """(connection, path, headers). Another server than the engine gets the key that its request names, never the
    engine's unasked."""
    timeout, elsewhere = request["timeout_s"], request.get("base")
    bearer = (env or {}).get(request.get("key_env")) if elsewhere else key
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
    if not elsewhere:
        return http.client.HTTPConnection(*server, timeout=timeout), request["path"], headers
    base = urllib.parse.urlsplit(elsewhere)
    kind = http.client.HTTPSConnection if base.scheme == "https" else http.client.HTTPConnection
    return kind(base.hostname, base.port, timeout=timeout), base.path.rstrip("/") + request["path"], headers


def without(headers, raw):
    """A reply without the key that was sent: a router may say it back in its refusal."""
    bearer = headers.get("Authorization", "").removeprefix("Bearer ")
    return raw.replace(bearer.encode(), b"***") if len(bearer) >= SHORTEST_KEY else raw


def cut(connection):
    """End a conversation whose time is over. http.client forgets the socket of a reply that closes it: opened is it."""
    with contextlib.suppress(OSError):
        connection.opened.shutdown(socket.SHUT_RDWR)


def read_reply(sock, reply, deadline, streamed=False):
    """The body, piece by piece, up to the limit. A stream ends with its last event, also where the server leaves the
    connection open."""
    parts, size, tail = [], 0, b"\n"
    while size < MAX_REPLY_BYTES:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        sock.settimeout(remaining)
        part = reply.read1(min(1 << 16, MAX_REPLY_BYTES - size))
        if not part:
            if time.monotonic() >= deadline:
                raise TimeoutError
            if reply.length:
                raise http.client.IncompleteRead(b"".join(parts), reply.length)
            break
        parts.append(part)
        size += len(part)
        # The last line may come in pieces.
        tail += part
        if streamed and DONE_LINE.search(tail):
            break
        tail = tail[-16:]
    return b"".join(parts)


def understand(raw, prefix=None):
    """json, or None and the start of the text; with a prefix the lines of the text that begin with it."""
    text = raw.decode(errors="replace")
    if prefix:
        lines = [line[:SHOWN_TEXT] for line in text.splitlines() if line.startswith(prefix)]
        return {"json": None, "text": "\n".join(lines[:SHOWN_LINES])}
    parsed = parse(text)
    return {"json": parsed, "text": "" if parsed is not None else text[:SHOWN_TEXT]}


def understand_stream(raw, prefix=None):
    """The events of a stream (WHATWG server-sent events, data fields alone), up to the last or the first bad one."""
    del prefix
    seen = {"json": None, "text": "", "events": [], "done": False, "bad": ""}
    for block in re.split(r"\n\n|\r\r|\r\n\r\n", raw.decode(errors="replace")):
        data = [line[5:].removeprefix(" ") for line in re.split(r"[\r\n]+", block) if line.startswith("data:")]
        text = "\n".join(data)
        if text == DONE:
            seen["done"] = True
            break
        if not text:
            continue
        event = parse(text)
        if event is None:
            seen["bad"] = text[:SHOWN_TEXT]
            break
        seen["events"].append(event)
    return seen


def parse(text):
    """The JSON document; None where the text is none, or one that could not travel on: nested too deep. NaN, infinity
    and half of a surrogate pair become text, because no later hand is sure to take them."""
    try:
        parsed = json.loads(text, parse_constant=str, parse_float=finite)
        if depth(parsed) > MAX_DEPTH:
            return None
        return json.loads(json.dumps(parsed, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def finite(text):
    value = float(text)
    return value if math.isfinite(value) else text


def depth(document):
    """How deep lists and maps lie in each other, without recursion."""
    level, deep = [document], 0
    while level and deep <= MAX_DEPTH:
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        deep += 1
    return deep


def ask_all(server, requests, key, env=None):
    responses = {}
    for request in requests:
        responses[request["id"]] = response = ask(server, request, key, env)
        # Without a whole reply its gate does not hold, and no gate after it is judged: more questions only wait.
        if "error" in response or (request is requests[0] and response.get("status") != http.client.OK):
            break
    return responses


def main():
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "container": {"type": "str", "required": True},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "state_path": {"type": "path"},
            "env_path": {"type": "path", "required": True},
            "requests": {"type": "list", "elements": "dict", "default": []},
            "cursor": {"type": "str", "default": ""},
            "max_lines": {"type": "int", "default": 4000},
        },
        supports_check_mode=True,
    )
    asked = module.params
    state = unit_state(asked["unit"])
    env = variables(asked["env_path"])
    server = (asked["address"], asked["port"])
    responses = ask_all(server, asked["requests"], env.get("VLLM_API_KEY", ""), env)
    lines, cursor = journal(asked["unit"], state, asked["cursor"], asked["max_lines"])
    try:
        container = Docker().container(asked["container"])
    except DockerError as error:
        container = {"error": str(error)}
    module.exit_json(
        changed=False,
        probe={
            "unit": state,
            "running_s": running_seconds(state),
            "container": container,
            "state": rank_state(asked["state_path"]),
            "lines": lines,
            "cursor": cursor,
            "responses": responses,
        },
    )


if __name__ == "__main__":
    main()
