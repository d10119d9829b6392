"""The page of the action plugin vllm_fabric_link: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_fabric_link
short_description: Plan the RoCE link between two Sparks, and judge it after the change
description:
  - Nothing on the host is changed; spark_netplan does that.
author: vllm-spark
options:
  phase:
    description: >-
      C(check) checks the inventory. C(plan) also plans the files. C(reached) refuses if the host does not answer
      after the change. C(pinged) prints a line for each subnet and refuses if one does not answer.
    type: str
    choices: [check, plan, reached, pinged]
    required: true
  host:
    description: This host. Every phase but C(pinged) needs it.
    type: str
  sparks:
    description: The hosts of the group. C(check) and C(plan) need them.
    type: list
    elements: str
  limit:
    description: The hosts of the run. C(check) and C(plan) need them.
    type: list
    elements: str
  fabric:
    description: The fabric as read on the host. C(plan) needs it.
    type: dict
  netplan:
    description: The netplan files as read on the host. C(plan) needs them.
    type: dict
  replace:
    description: Whether files of others are replaced. C(plan) needs it.
    type: bool
  guard_s:
    description: The seconds after which the host restores its files. C(reached) needs them.
    type: int
  lost:
    description: Why the host does not answer; empty if it does. C(reached) needs it.
    type: str
  plan:
    description: The plan that C(plan) has returned. C(pinged) needs it.
    type: dict
  pings:
    description: The results of the pings. C(pinged) needs them.
    type: list
    elements: dict
  netdevs:
    description: The network devices after the change. C(pinged) needs them.
    type: raw
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Check the inventory
  vllm_spark.toolkit.vllm_fabric_link:
    phase: check
    host: "{{ inventory_hostname }}"
    sparks: "{{ groups['sparks'] }}"
    limit: "{{ ansible_play_hosts_all }}"
"""

RETURN = r"""
plan:
  description: The plan. Of C(plan).
  returned: success
  type: dict
"""
