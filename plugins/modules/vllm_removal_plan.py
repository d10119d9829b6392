"""The page of the action plugin vllm_removal_plan: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_removal_plan
short_description: Decide and print what prune or remove deletes from a host
description:
  - Reads what the hosts of the play have registered from vllm_holdings.
author: vllm-spark
options:
  registered:
    description: The variable with the result of vllm_holdings.
    type: str
    required: true
  remove:
    description: The fields of the request to remove. Without it, this is a prune.
    type: dict
  again:
    description: Whether anything that is left is an error. Without this argument it is not.
    type: bool
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Decide what prune deletes
  vllm_spark.toolkit.vllm_removal_plan:
    registered: vllm_prune_box
"""

RETURN = r"""
items:
  description: The items for vllm_remove.
  returned: success
  type: list
  elements: raw
"""
