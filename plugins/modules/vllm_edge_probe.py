#!/usr/bin/python
"""Send the requests of the gate `edge` from the Spark itself."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_edge_probe
short_description: Send the requests of the gate edge from the Spark itself
description:
  - Sends requests that the edge must refuse. None reaches the engine. A key for them exists only meanwhile, in the
    memory of HAProxy.
author: vllm-spark
options:
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
  thorough:
    description: Also send the requests that wait for the end of a timeout or use up the requests of a minute.
    type: bool
    default: true
attributes:
  check_mode:
    support: full
    description: The module changes nothing that stays.
"""

EXAMPLES = r"""
- name: Ask the edge
  vllm_edge_probe: {address: 127.0.0.1, port: 8000, unlisted: [[GET, /metrics]]}
"""

RETURN = r"""
edge:
  description: What the edge has answered, by request.
  returned: always
  type: dict
"""

import hashlib
import re
import secrets
import ssl

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge, spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_admin import SOCKET, ask_admin
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Limits, Target, limits_of
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_text
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_ports import holders

# In the configuration of an edge with TLS.
TLS = " ssl crt"
RESIDENT = re.compile(r"VmRSS:\s+(\d+) kB")


def first_stage_bytes() -> int:
    """Return the resident memory of the stage that strangers reach, 0 if it does not run."""
    found = RESIDENT.search(read_text(f"/proc/{spark_edge.worker(SOCKET)}/status") or "")
    return int(found[1]) * 1024 if found else 0


def with_key(target: Target, limits: Limits, *, thorough: bool) -> dict[str, object]:
    """Return what a client with a key sees. The key is in no file, and ends with the probe."""
    key = secrets.token_urlsafe(32)
    key_hash = hashlib.sha256(key.encode()).hexdigest()
    # A name of its own for each probe: its count of requests starts at zero.
    name = f"gate-{secrets.token_hex(4)}"
    ask_admin(f"add map {spark_edge.KEYS} {key_hash} {name}", SOCKET)
    try:
        seen = spark_edge_probe.inside(target, key, limits, thorough=thorough, memory=first_stage_bytes)
        return {**seen, "limits": limits._asdict()}
    finally:
        ask_admin(f"del map {spark_edge.KEYS} {key_hash}", SOCKET)


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
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "unlisted": {"type": "list", "elements": "list", "required": True},
            "site_port": {"type": "int", "default": 0},
            "thorough": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    config = read_text(spark_edge.CONFIG) or ""
    # Every edge answers to this name.
    target = Target(params["address"], params["port"], TLS in config, "localhost")
    observed = spark_edge_probe.outside(target, [(method, path) for method, path in params["unlisted"]])
    if "error" not in observed:
        try:
            observed["shown"] = spark_edge_probe.shown(target)
            observed |= with_key(target, limits_of(config), thorough=params["thorough"])
        except (OSError, ValueError) as error:
            observed["error"] = f"{type(error).__name__}: {error}"
    if params["site_port"]:
        observed["site"] = spark_edge_probe.uninvited(target._replace(port=params["site_port"]))
    observed["tls"] = target.tls
    observed["public"] = spark_edge.certificates()
    observed["placed"] = placed(observed["public"])
    observed["holder"] = holders([target.port], {}).get(str(target.port)) or {}
    module.exit_json(changed=False, edge=observed)


if __name__ == "__main__":
    main()
