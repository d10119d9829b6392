"""The page of the action plugin vllm_pull_plan: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_pull_plan
short_description: Resolve what a pull brings to a host, plan the transfers, and prove that everything arrived
description:
  - C(plan) and C(prove) read what all hosts of the pull have registered.
author: vllm-spark
options:
  phase:
    description: What to do.
    type: str
    choices: [resolve, plan, prove]
    required: true
  host:
    description: This host. C(resolve) needs it.
    type: str
  deployments:
    description: The deployments of the inventory, not yet checked. C(resolve) needs them.
    type: raw
  named:
    description: Names of deployments; empty for the active ones. C(resolve) needs them.
    type: list
    elements: str
  sparks:
    description: The hosts of the group. C(resolve) needs them.
    type: list
    elements: str
  limit:
    description: The hosts of the run. C(resolve) needs them.
    type: list
    elements: str
  recipe_folders:
    description: Folders that contain recipes. C(resolve) needs them.
    type: list
    elements: str
  lock_file:
    description: The lock file. C(resolve) needs it.
    type: str
  secrets:
    description: The secrets by name. C(resolve) needs them; it keeps only which of them are empty.
    type: dict
  accepted:
    description: Ids of known issues that the operator accepts. C(resolve) needs them.
    type: list
    elements: str
  everywhere:
    description: All deployments, if O(deployments) has only a part of them.
    type: raw
  edge:
    description: The edge of this host, not yet checked.
    type: raw
  site:
    description: The folders and the package index of the site. C(resolve) needs them.
    type: dict
  hosts:
    description: All Sparks of this pull, whose facts and weights were read. C(plan) and C(prove) need them.
    type: list
    elements: str
  bundled:
    description: Whether a bundle is the source. Without this argument it is not.
    type: bool
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Prove that everything arrived
  vllm_spark.toolkit.vllm_pull_plan:
    phase: prove
    hosts: [spark1, spark2]
"""

RETURN = r"""
specs:
  description: The specs of the host. Of C(resolve).
  returned: success
  type: list
  elements: raw
questions:
  description: The arguments of spark_facts. Of C(resolve).
  returned: success
  type: dict
look:
  description: The request of the job that looks at the models. Of C(resolve).
  returned: success
  type: dict
programs:
  description: The programs of the jobs. Of C(resolve).
  returned: success
  type: dict
steps:
  description: The steps of this host. Of C(plan).
  returned: success
  type: dict
"""
