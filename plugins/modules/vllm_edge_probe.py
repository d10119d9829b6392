#!/usr/bin/python
"""Send the requests of the gate `edge` from the Spark itself."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_edge_probe
short_description: Send the requests of the gate edge from the Spark itself
description:
  - Sends requests without a key, which the edge must refuse. None reaches the engine.
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
import ssl

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge, spark_edge_probe
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_probe import Target
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_text
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_ports import holders

# In the configuration of an edge with TLS.
TLS = " ssl crt"


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
        },
        supports_check_mode=True,
    )
    params = module.params
    # Every edge answers to this name.
    target = Target(params["address"], params["port"], TLS in (read_text(spark_edge.CONFIG) or ""), "localhost")
    observed = spark_edge_probe.outside(target, [(method, path) for method, path in params["unlisted"]])
    if "error" not in observed:
        try:
            observed["shown"] = spark_edge_probe.shown(target)
        except OSError as error:
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
