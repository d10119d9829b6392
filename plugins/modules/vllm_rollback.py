"""The page of the action plugin vllm_rollback: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_rollback
short_description: Choose the launch to restore, and decide whether a launch stays
description:
  - Reads what all hosts of the play, or of the deployment, have registered.
author: vllm-spark
options:
  phase:
    description:
      - C(choose) chooses the launch that the verb rollback restores, for all hosts of the play at once.
      - C(decide) decides after a deploy whether another launch replaces that of the host.
      - C(end) decides the same at the end of a manual rollback.
    type: str
    choices: [choose, decide, end]
    required: true
  deployment:
    description: The deployment; empty for the running one. Of C(choose).
    type: str
  secrets:
    description: The secrets of today by name, of which only the names are used. Of C(choose).
    type: dict
    default: {}
  hosts:
    description: The hosts of the deployment. Of C(decide) and C(end).
    type: list
    elements: str
  plan:
    description: The plan of this host. Of C(decide).
    type: dict
  enabled:
    description: Whether the operator allows a rollback. Of C(decide).
    type: bool
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Choose the launch
  vllm_spark.toolkit.vllm_rollback:
    phase: choose
    deployment: ""
"""

RETURN = r"""
target:
  description: The launch of this host; empty if the host does not have the deployment. Of C(choose).
  returned: success
  type: dict
hosts:
  description: The hosts that have it. Of C(choose).
  returned: success
  type: list
  elements: raw
judged:
  description: The result of vllm_verify on this host, beside the fields of the decision. Of C(decide) and C(end).
  returned: success
  type: dict
results:
  description: Those on all hosts. What they have missed is the first cause. Of C(decide) and C(end).
  returned: success
  type: list
  elements: raw
"""
