"""The page of the action plugin vllm_spec: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_spec
short_description: Resolve what a host runs, from the inventory alone
description:
  - Refuses with every fault of the inventory. Names variables that nothing reads.
author: vllm-spark
options:
  host:
    description: This host.
    type: str
    required: true
  deployments:
    description: The deployments of the inventory, not yet checked.
    type: raw
    required: true
  sparks:
    description: The hosts of the group.
    type: list
    elements: str
    required: true
  limit:
    description: The hosts of the run.
    type: list
    elements: str
    required: true
  recipe_folders:
    description: Folders that contain recipes.
    type: list
    elements: str
    required: true
  lock_file:
    description: The lock file.
    type: str
    required: true
  secrets:
    description: The secrets by name. Only which of them are empty is kept.
    type: dict
    required: true
  accepted:
    description: Ids of known issues that the operator accepts.
    type: list
    elements: str
    required: true
  everywhere:
    description: All deployments, if O(deployments) has only a part of them.
    type: raw
  edge:
    description: The edge of this host, not yet checked.
    type: raw
  notification:
    description: Where the host tells its owner about troubles, not yet checked.
    type: raw
  site:
    description: The folders, the package index and the settings of the site.
    type: dict
    required: true
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Resolve the host
  vllm_spark.toolkit.vllm_spec:
    host: "{{ inventory_hostname }}"
    deployments: "{{ vllm_deployments }}"
    sparks: "{{ groups['sparks'] }}"
    limit: "{{ ansible_play_hosts_all }}"
    recipe_folders: [recipes]
    lock_file: inventories/site/lock.yml
    secrets: {}
    accepted: []
    site: {hub_dir: /srv/hub, cache_dir: /srv/cache, pip_index: ""}
"""

RETURN = r"""
spec:
  description: The spec of the host's rank; none without an active deployment.
  returned: success
  type: dict
edge:
  description: The edge of a host without an active deployment that has one.
  returned: success
  type: dict
questions:
  description: The arguments of spark_facts.
  returned: success
  type: dict
"""
