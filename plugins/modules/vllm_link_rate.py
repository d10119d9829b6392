"""The page of the action plugin vllm_link_rate: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_link_rate
short_description: Measure the fabric of a pair on both hosts at the same time
description:
  - Refuses if a rail is slower than the limit.
author: vllm-spark
options:
  least_gbps:
    description: The least rate of a rail in Gbit/s.
    type: float
    required: true
  plan:
    description: The plan of vllm_fabric_link. It takes precedence over O(hosts).
    type: dict
  hosts:
    description: >-
      The hosts of a pair whose facts spark_precheck has read. With any other number of hosts nothing is measured.
    type: list
    elements: str
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Measure the fabric
  vllm_spark.toolkit.vllm_link_rate:
    hosts: [spark1, spark2]
    least_gbps: 80
"""

RETURN = r"""
lines:
  description: The printed lines.
  returned: success
  type: list
  elements: raw
"""
