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
    description: The env file, whose VLLM_API_KEY is sent and never returned.
    type: path
    required: true
  requests:
    description: What to ask, in order. The rest is left out if the first does not answer 200.
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

import http.client
import json
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_docker import Docker, DockerError

PROPERTIES = ("ActiveState", "SubState", "Result", "NRestarts", "InvocationID", "ExecMainStatus",
              "ExecMainStartTimestampMonotonic")  # fmt: skip
CURSOR = "-- cursor: "
# A reply is judged by its first part; a server that streams for ever must not fill this process.
MAX_REPLY_BYTES = 1 << 20
SHOWN_TEXT = 500


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


def api_key(path):
    try:
        with open(path, encoding="utf-8") as file:
            pairs = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line and line[0] != "#")
    except FileNotFoundError:
        return ""
    return pairs.get("VLLM_API_KEY", "")


def ask(server, request, key):
    """One request: status, json or the start of the text, seconds; or the error in words. Ends by its timeout."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = json.dumps(request["body"]) if request.get("body") else None
    begun = time.monotonic()
    connection = http.client.HTTPConnection(*server, timeout=request["timeout_s"])
    try:
        connection.request(request["method"], request["path"], body, headers)
        reply = connection.getresponse()
        text = read_reply(connection, reply, begun + request["timeout_s"]).decode(errors="replace")
    except TimeoutError:
        return {"error": f"no whole reply within {request['timeout_s']} s", "seconds": time.monotonic() - begun}
    except (OSError, http.client.HTTPException) as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begun}
    finally:
        connection.close()
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    return {
        "status": reply.status,
        "json": parsed,
        "text": "" if parsed is not None else text[:SHOWN_TEXT],
        "seconds": time.monotonic() - begun,
    }


def read_reply(connection, reply, deadline):
    """The body, piece by piece: a socket's own timeout starts anew with every byte, so a drip would never end."""
    parts, size = [], 0
    while size < MAX_REPLY_BYTES:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        if connection.sock:
            connection.sock.settimeout(remaining)
        part = reply.read1(1 << 16)
        if not part:
            if reply.length:
                raise http.client.IncompleteRead(b"".join(parts), reply.length)
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def ask_all(server, requests, key):
    responses = {}
    for request in requests:
        responses[request["id"]] = response = ask(server, request, key)
        if request is requests[0] and response.get("status") != http.client.OK:
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
    responses = ask_all((asked["address"], asked["port"]), asked["requests"], api_key(asked["env_path"]))
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
