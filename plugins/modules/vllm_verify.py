"""The page of the action plugin vllm_verify: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_verify
short_description: Judge the gates of a rank or of an edge alone, and end a verification
description:
  - The module vllm_probe sends the requests on the host. The controller sends those of the gates C(reach) and
    C(edge). The gates that pass share one line, except with C(-v).
author: vllm-spark
options:
  phase:
    description:
      - C(gates) waits until a rank serves, judges its gates and writes the report.
      - C(edge) judges the edge of a Spark that is the head of no active deployment, and fails with every condition
        that does not hold.
      - C(end) fails if this rank has missed a gate. The message names the first cause among all ranks of the
        deployment, whose results are registered as C(vllm_verify_judged).
    type: str
    choices: [gates, edge, end]
    required: true
  gates:
    description: The gates of a plan. Of C(gates), like each argument that names no phase.
    type: dict
  env_path:
    description: The env file on the host.
    type: str
  reason:
    description: Why the launch was deployed.
    type: str
  report_dir:
    description: The folder of the report on the controller.
    type: str
  wait:
    description: Whether to wait for the server. False judges its present state.
    type: bool
  thorough:
    description: >-
      Whether to judge also the gates that the recipe names, and what waits for a timeout or uses up the requests of
      a minute. They are judged without this argument. Of C(gates) and C(edge).
    type: bool
  closing:
    description: Whether to print how to use the server. It is printed without this argument.
    type: bool
  authority:
    description: The folder of the site's authority on the controller. An edge needs it. Of C(gates) and C(edge).
    type: str
  hosts:
    description: The hosts of the deployment. Of C(end).
    type: list
    elements: str
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Judge the present state
  vllm_spark.toolkit.vllm_verify:
    phase: gates
    gates: "{{ plan.gates }}"
    env_path: "{{ plan.env_path }}"
    reason: "{{ plan.reason }}"
    report_dir: reports
    wait: false
"""

RETURN = r"""
holds:
  description: Whether every gate holds. Of C(gates) and C(edge).
  returned: success
  type: bool
missed:
  description: The gates that do not. Of C(gates).
  returned: success
  type: str
report:
  description: The path of the report, of a rank that serves.
  returned: success
  type: str
remoteness:
  description: How near the cause of a rank that does not serve is, for the choice of the first cause.
  returned: success
  type: raw
document:
  description: >-
    The part of the document for programs, which docs/reference/json.md explains. Of C(gates) and C(edge); a failure
    has it too.
  returned: always
  type: dict
"""
