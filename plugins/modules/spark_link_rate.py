#!/usr/bin/python
"""Measure TCP over each subnet of the fabric, in both directions. Changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_link_rate
short_description: Measure TCP over each subnet of the fabric
description:
  - Sends to the peer and receives from it over each subnet in its turn. It must run on all hosts at the same time.
author: vllm-spark
options:
  rails:
    description:
      - The subnets, each with C(netdev), C(own) and C(peer), the addresses of the two ends; C(turn), the same at both
        ends and different for each subnet of a host; and C(first), true at exactly one of the ends, which sends first.
    type: list
    elements: dict
    required: true
attributes:
  check_mode:
    support: full
    description: The module changes nothing.
"""

EXAMPLES = r"""
- name: Measure the link
  spark_link_rate:
    rails: [{netdev: enp1s0f1np1, own: 192.168.177.11, peer: 192.168.177.12, turn: 0, first: true}]
"""

RETURN = r"""
received:
  description: For each rail its netdev, the received_bytes and seconds of what the peer sent, and an error.
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_link_rate import measure

# The hosts listen on it in the first turn, and on the next port in each later one, on the address of the rail alone.
PORT = 5201
# Duration of each direction of each subnet, and the time in which the peer must appear.
SECONDS, WAIT_S = 2.0, 20.0


def main() -> None:
    spec = {"rails": {"type": "list", "elements": "dict", "required": True}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    received = measure(**module.params, port=PORT, seconds=SECONDS, wait_s=WAIT_S)
    module.exit_json(changed=False, received=received)


if __name__ == "__main__":
    main()
