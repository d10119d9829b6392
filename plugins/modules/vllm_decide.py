"""The page of the action plugin vllm_decide: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_decide
short_description: Decide what happens to the unit of a host
description:
  - The decision depends on the plan and on the files that have changed.
author: vllm-spark
options:
  plan:
    description: The plan of this host (vllm_plan).
    type: dict
    required: true
  changed_paths:
    description: The files that vllm_files has changed, or would change in check mode.
    type: list
    elements: str
    required: true
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Decide about the unit
  vllm_spark.toolkit.vllm_decide:
    plan: "{{ spark_precheck_planned.plan }}"
    changed_paths: "{{ placed.changed_paths }}"
"""

RETURN = r"""
starts:
  description: Whether the unit starts; beside it are the other fields of the decision.
  returned: success
  type: bool
"""
