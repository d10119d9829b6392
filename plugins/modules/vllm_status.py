"""The page of the action plugin vllm_status: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_status
short_description: Print what runs on each host of the play
description:
  - Reads what earlier tasks have registered on each host. Check mode writes the file too, because no host changes.
author: vllm-spark
options:
  json_file:
    description: The file for the document. Empty for none.
    type: str
    required: true
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Print the status
  vllm_spark.toolkit.vllm_status:
    json_file: ""
"""

RETURN = r"""
document:
  description: The document for programs, which docs/reference/json.md explains.
  returned: success
  type: dict
  elements: raw
"""
