"""The page of the action plugin vllm_plan: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_plan
short_description: Plan a host from what is resolved and known of all hosts of its deployment
description:
  - Refuses with every reason. What is resolved and the facts are those of spark_precheck.
author: vllm-spark
options: {}
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Plan the deployment
  vllm_spark.toolkit.vllm_plan:
"""

RETURN = r"""
plan:
  description: The plan of this host.
  returned: success
  type: dict
findings:
  description: The findings of the host checks.
  returned: success
  type: list
  elements: raw
"""
