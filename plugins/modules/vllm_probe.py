#!/usr/bin/python
"""Probe a model server from its own host: unit, container, log, and responses of its API."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_probe
short_description: Probe a model server from its own host, in one round trip
description:
  - Reads the unit's state, the container and the engine's log, and sends requests to the API. The other requests are
    sent only if the first one is answered with 200. Changes nothing.
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
    description: The address of the API on its own host.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the API.
    type: int
    required: true
  socket:
    description: The unix socket of a closed engine, which is asked in place of the address and the port.
    type: path
  state_path:
    description: The state file of the supervisor of a pair's rank.
    type: path
  env_path:
    description:
      - The env file. The variable in a request's key_env is sent to its server, VLLM_API_KEY to an engine without a
        socket. Neither is returned.
    type: path
    required: true
  requests:
    description:
      - The requests, in order. The rest is not sent if the first one is not answered with 200, or after any
        request without a complete response.
      - 'Keys of each: id, method, path, body, timeout_s. base: URL of another server, which does not get
        the key of the engine. key_env: name of the variable in the env file whose value that server gets instead.
        anonymous: send no key.
        prefix: return the lines of a text that start with it. A body with stream: true is read as events.'
    type: list
    elements: dict
    default: []
  cursor:
    description: Journal position after which to read; empty for the start of this run of the unit.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: The module only reads.
"""

EXAMPLES = r"""
- name: Probe the server
  vllm_probe:
    unit: vllm@demo.service
    container: vllm-demo
    port: 8000
    env_path: /etc/vllm-spark/demo/env
"""

RETURN = r"""
probe:
  description: The results of the probe.
  returned: always
  type: dict
  contains:
    unit:
      description: Properties of the unit, by name.
      type: dict
    container:
      description: The container, with error if Docker does not answer; null if there is none.
      type: dict
    state:
      description: The supervisor's state file; empty if there is none.
      type: dict
    lines:
      description: New lines of the engine's log.
      type: list
      elements: str
    cursor:
      description: Journal position after these lines.
      type: str
    running_s:
      description: Seconds since the engine's process started.
      type: float
    responses:
      description: The responses by the id of the request.
      type: dict
"""

import subprocess
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import Docker, DockerError
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_object
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_requests import send_all
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_systemd import unit_properties

PROPERTIES = ("ActiveState", "SubState", "Result", "NRestarts", "InvocationID", "ExecMainStatus",
              "ExecMainStartTimestampMonotonic")  # fmt: skip
CURSOR = "-- cursor: "
# So many lines of a log are returned.
MAX_LINES = 4000


def running_seconds(state: dict[str, str]) -> float:
    """Return the seconds since the engine's process started; both clocks are this kernel's."""
    started = int(state.get("ExecMainStartTimestampMonotonic") or 0)
    return max(0.0, time.clock_gettime(time.CLOCK_MONOTONIC) - started / 1e6) if started else 0.0


def journal(unit: str, state: dict[str, str], cursor: str) -> tuple[list[str], str]:
    """Return (lines, new cursor). Without a cursor: from the start of this run, which has the messages of the start."""
    if not cursor and not state.get("InvocationID"):
        return [], ""
    argv = [
        "journalctl",
        "--quiet",
        "--no-pager",
        "--output",
        "cat",
        "--show-cursor",
        f"_SYSTEMD_UNIT={unit}",
    ]
    argv.append(f"--after-cursor={cursor}" if cursor else f"_SYSTEMD_INVOCATION_ID={state['InvocationID']}")
    lines: list[str] = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace") as reader:
        for line in reader.stdout or ():
            if line.startswith(CURSOR):
                cursor = line[len(CURSOR) :].strip()
            elif len(lines) < MAX_LINES:
                lines.append(line.rstrip("\n"))
            else:
                # A server that has run for a month: its start is decisive, so the rest is not read.
                reader.kill()
                break
    return lines, cursor


def variables(path: str) -> dict[str, str]:
    """Return the variables of the env file by name; none if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            return dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line and line[0] != "#")
    except FileNotFoundError:
        return {}


def container_state(name: str) -> Any:
    """Return the container, None if there is none, or the error of Docker."""
    try:
        return Docker().container(name)
    except DockerError as error:
        return {"error": str(error)}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "container": {"type": "str", "required": True},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "required": True},
            "socket": {"type": "path"},
            "state_path": {"type": "path"},
            "env_path": {"type": "path", "required": True},
            "requests": {"type": "list", "elements": "dict", "default": []},
            "cursor": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    state = unit_properties(params["unit"], PROPERTIES)
    env = variables(params["env_path"])
    server = params["socket"] or (params["address"], params["port"])
    # A closed engine checks no key.
    key = "" if params["socket"] else env.get("VLLM_API_KEY", "")
    responses = send_all(server, params["requests"], key, env)
    lines, cursor = journal(params["unit"], state, params["cursor"])
    probe = {
        "unit": state,
        "running_s": running_seconds(state),
        "container": container_state(params["container"]),
        "state": (read_object(params["state_path"]) if params["state_path"] else None) or {},
        "lines": lines,
        "cursor": cursor,
        "responses": responses,
    }
    module.exit_json(changed=False, probe=probe)


if __name__ == "__main__":
    main()
