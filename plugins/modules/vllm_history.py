"""The page of the action plugin vllm_history: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_history
short_description: Record judged gates in the history of a host, read it, or print that of all hosts
description:
  - C(table) reads what each host has registered as C(vllm_history_read).
author: vllm-spark
options:
  phase:
    description: What to do.
    type: str
    choices: [read, record, table]
    required: true
  deployment:
    description: The deployment; empty to read the histories of all.
    type: str
  last:
    description: The number of entries of each deployment that C(read) returns, and of rows that C(table) prints.
    type: int
  folder:
    description: The folder of the deployment on the host. C(record) needs it.
    type: str
  verb:
    description: The verb whose gates were judged. C(record) needs it.
    type: str
  judged:
    description: The result of vllm_verify. C(record) needs it.
    type: dict
  json_file:
    description: The file for the JSON of C(table). Empty for none.
    type: str
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Read the history of one deployment
  vllm_spark.toolkit.vllm_history:
    phase: read
    deployment: demo
"""

RETURN = r"""
entries:
  description: The last entries, the oldest first. Of C(read).
  returned: success
  type: list
  elements: raw
document:
  description: The document for programs, which docs/reference/json.md explains. Of C(table).
  returned: success
  type: dict
"""
