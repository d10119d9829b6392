#!/usr/bin/python
"""Probe a model server and its edge from their own host: unit, container, log, and responses of both."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_probe
short_description: Probe a model server and its edge from their own host, in one round trip
description:
  - Reads the unit's state, the container and the engine's log, and sends requests to the API. The other requests are
    sent only if the first one is answered with 200. Changes nothing.
  - Sends requests without a key to the edge, which must refuse them. None reaches the engine.
author: vllm-spark
options:
  unit:
    description: The unit to read. Needed without O(edge). Without it, only the edge is asked.
    type: str
  container:
    description: The container to read. Needed with O(unit).
    type: str
  address:
    description: The address of the API on its own host.
    type: str
    default: 127.0.0.1
  port:
    description: Port of the API. Needed with O(unit).
    type: int
  socket:
    description: The unix socket of a closed engine, which is asked in place of the address and the port.
    type: path
  state_path:
    description: The state file of the supervisor of a pair's rank.
    type: path
  env_path:
    description:
      - The env file. The variable in a request's key_env is sent to its server, VLLM_API_KEY to an engine without a
        socket. Neither is returned. Needed with O(unit).
    type: path
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
  edge:
    description: The edge to ask. Without it, none is asked.
    type: dict
    suboptions:
      address:
        description: The address on which the edge listens.
        type: str
        required: true
      port:
        description: Its port.
        type: int
        required: true
      unlisted:
        description: Methods and paths that it must not serve.
        type: list
        elements: list
        required: true
      site_port:
        description: The port on which the edges of a site ask each other. 0 if there is no site.
        type: int
        default: 0
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

- name: Ask the edge
  vllm_probe:
    edge: {address: 127.0.0.1, port: 8000, unlisted: [[GET, /metrics]]}
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
      description: The responses by the id of the request. C(edge) has those of the edge, if it was asked.
      type: dict
"""

import hashlib
import ssl
import subprocess
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge, spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import Docker, DockerError
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_object, read_text
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_ports import holders
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_requests import send_all
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_systemd import unit_properties

PROPERTIES = ("ActiveState", "SubState", "Result", "NRestarts", "InvocationID", "ExecMainStatus",
              "ExecMainStartTimestampMonotonic")  # fmt: skip
CURSOR = "-- cursor: "
# So many lines of a log are returned.
MAX_LINES = 4000
# In the configuration of an edge with TLS.
TLS = " ssl crt"
EDGE = {
    "address": {"type": "str", "required": True},
    "port": {"type": "int", "required": True},
    "unlisted": {"type": "list", "elements": "list", "required": True},
    "site_port": {"type": "int", "default": 0},
}


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


def of_server(params: dict[str, Any]) -> dict[str, Any]:
    """Return the probe of the model server."""
    state = unit_properties(params["unit"], PROPERTIES)
    env = variables(params["env_path"])
    server = params["socket"] or (params["address"], params["port"])
    # A closed engine checks no key.
    key = "" if params["socket"] else env.get("VLLM_API_KEY", "")
    responses = send_all(server, params["requests"], key, env)
    lines, cursor = journal(params["unit"], state, params["cursor"])
    return {
        "unit": state,
        "running_s": running_seconds(state),
        "container": container_state(params["container"]),
        "state": (read_object(params["state_path"]) if params["state_path"] else None) or {},
        "lines": lines,
        "cursor": cursor,
        "responses": responses,
    }


def of_edge(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what the edge answers to a client without a key, and what its files let a client get."""
    # Every edge answers to this name.
    target = Target(asked["address"], asked["port"], TLS in (read_text(spark_edge.CONFIG) or ""), "localhost")
    observed = spark_edge_probe.outside(target, [(method, path) for method, path in asked["unlisted"]])
    if "error" not in observed:
        try:
            observed["shown"] = spark_edge_probe.shown(target)
        except OSError as error:
            observed["error"] = f"{type(error).__name__}: {error}"
    if asked["site_port"]:
        observed["site"] = spark_edge_probe.uninvited(target._replace(port=asked["site_port"]))
    public = spark_edge.certificates()
    holder: Any = holders([target.port], {}).get(str(target.port)) or {}
    return {**observed, "tls": target.tls, "public": public, "placed": placed(public), "holder": holder}


def placed(public: dict[str, str]) -> dict[str, str]:
    """Return the SHA-256 of the certificates that the files let a client get, as spark_edge_probe.shown."""
    first = _sha256(public["certificate"])
    return {"by_name": _sha256(public["names_certificate"]) or first, "by_address": first}


def _sha256(pem: str) -> str:
    """Return the SHA-256 of the first certificate of a text."""
    certificates = spark_edge.PUBLIC.findall(pem)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificates[0])).hexdigest() if certificates else ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str"},
            "container": {"type": "str"},
            "address": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int"},
            "socket": {"type": "path"},
            "state_path": {"type": "path"},
            "env_path": {"type": "path"},
            "requests": {"type": "list", "elements": "dict", "default": []},
            "cursor": {"type": "str", "default": ""},
            "edge": {"type": "dict", "options": EDGE},
        },
        required_if=[("edge", None, ["unit", "container", "port", "env_path"])],
        supports_check_mode=True,
    )
    params = module.params
    probe = of_server(params) if params["unit"] else {"responses": {}}
    if params["edge"]:
        probe["responses"]["edge"] = of_edge(params["edge"])
    module.exit_json(changed=False, probe=probe)


if __name__ == "__main__":
    main()
