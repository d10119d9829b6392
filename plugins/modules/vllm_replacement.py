"""The page of the action plugin vllm_replacement: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_replacement
short_description: Decide and judge what a deploy replaces on a host
description:
  - Reads what all hosts of the deployment have registered.
author: vllm-spark
options:
  phase:
    description: C(decide) decides. C(result) judges the change. C(report) fails with what came back where.
    type: str
    choices: [decide, result, report]
    required: true
  deployments:
    description: The deployments of the inventory. C(decide) needs them.
    type: raw
  decision:
    description: The result of vllm_decide. C(decide) needs it.
    type: dict
  replacement:
    description: The result of C(decide). C(result) needs it.
    type: dict
  missed:
    description: Why the new server is not kept. C(report) needs it.
    type: str
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Judge the change
  vllm_spark.toolkit.vllm_replacement:
    phase: result
    replacement: "{{ replacement }}"
"""

RETURN = r"""
ok:
  description: Whether the change has succeeded. Of C(result), beside the fields of the replacement.
  returned: success
  type: bool
missed:
  description: Why it has not. Of C(result).
  returned: success
  type: str
"""
