"""The page of the action plugin vllm_switch: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_switch
short_description: Decide about a switch on a host
description:
  - Reads the plans that spark_precheck has registered on every host of the play, and the results of its own phases.
    Names are without C(vllm@).
author: vllm-spark
options:
  phase:
    description:
      - C(choose) chooses the deployments that the switch concerns.
      - C(order) decides what stops on the host.
      - C(steps) chooses the commands of the host.
      - C(result) judges the switch on all hosts.
    type: str
    choices: [choose, order, steps, result]
    required: true
  deployments:
    description: The deployments of the inventory; for C(order) those of C(choose). Not of C(steps).
    type: raw
  limit:
    description: The hosts of the run. Of C(choose) and C(order).
    type: list
    elements: str
  to:
    description: The deployment that becomes active. Not of C(order).
    type: str
  order:
    description: The result of C(order). Of C(steps).
    type: dict
  decision:
    description: The result of vllm_decide. Of C(steps).
    type: dict
  drain_s:
    description: The most seconds that running requests get. Of C(steps).
    type: int
  memory_s:
    description: The most seconds until the memory is free. Of C(steps).
    type: int
  hosts:
    description: The hosts of the new deployment. Of C(result).
    type: list
    elements: str
  return_allowed:
    description: Whether the old deployments return if the switch fails. Of C(result).
    type: bool
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Choose the deployments
  vllm_spark.toolkit.vllm_switch:
    phase: choose
    deployments: "{{ vllm_deployments }}"
    to: other
    limit: "{{ ansible_play_hosts_all }}"
"""

RETURN = r"""
deployments:
  description: The deployments of this run. Of C(choose).
  returned: success
  type: list
  elements: raw
hosts:
  description: The hosts of the new one. Of C(choose).
  returned: success
  type: list
  elements: raw
involved:
  description: Whether the switch concerns this host. Of C(order).
  returned: success
  type: bool
starts:
  description: Whether the new deployment starts on this host. Of C(order).
  returned: success
  type: bool
stop:
  description: What stops. Of C(order).
  returned: success
  type: list
  elements: raw
running:
  description: What of it runs. Of C(order).
  returned: success
  type: list
  elements: raw
others:
  description: What runs and stays. Of C(order).
  returned: success
  type: list
  elements: raw
old:
  description: What returns if the switch fails; empty for nothing. Of C(order).
  returned: success
  type: str
change:
  description: The argv of the change; empty if the host skips it. Beside it are the other steps. Of C(steps).
  returned: success
  type: list
  elements: raw
if_interrupted:
  description: What Ctrl-C leaves from now on, if a server stops or starts here. Of C(steps).
  returned: success
  type: dict
ok:
  description: Whether the switch has succeeded; beside it are the other fields of the result. Of C(result).
  returned: success
  type: bool
"""
