"""The page of the action plugin vllm_lock: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_lock
short_description: Resolve the images and models that the recipes do not pin, and write the lock file
description:
  - Asks the registries and the hub from this machine.
author: vllm-spark
options:
  deployments:
    description: The deployments of the inventory, not yet checked.
    type: raw
    required: true
  limit:
    description: The hosts of the run.
    type: list
    elements: str
    required: true
  recipes:
    description: Names of recipes. If empty, those of every active deployment within the limit.
    type: list
    elements: str
    required: true
  recipe_folders:
    description: Folders that contain recipes.
    type: list
    elements: str
    required: true
  lock_file:
    description: The lock file on the controller.
    type: str
    required: true
  accepted:
    description: Keys of the lock file whose entries may move, or C(all).
    type: list
    elements: str
    required: true
  verify:
    description: Whether to check the digests that the recipes pin themselves.
    type: bool
    required: true
  open_only:
    description:
      - Whether to leave out recipes whose pins are all known, and on several hosts the manifests of the models too.
    type: bool
    required: true
  registries:
    description: A registry to the URL that is asked in its place.
    type: dict
    required: true
  second_registries:
    description: A registry to the URL of a second one, which must see the same digest of a tag.
    type: dict
    required: true
  hub_environment:
    description: Variables of the process that asks, if one of the hosts is this machine.
    type: dict
    required: true
  token:
    description: The token of the hub. Empty for none.
    type: str
    required: true
attributes:
  check_mode:
    support: full
    description: It decides and predicts without a change.
  diff_mode:
    support: full
    description: The diff has the files that change.
"""

EXAMPLES = r"""
- name: Write the lock file
  vllm_spark.toolkit.vllm_lock:
    deployments: "{{ vllm_deployments }}"
    limit: "{{ ansible_play_hosts_all }}"
    recipes: []
    recipe_folders: [recipes]
    lock_file: inventories/site/lock.yml
    accepted: []
    verify: false
    open_only: false
    registries: {}
    second_registries: {docker.io: https://mirror.gcr.io}
    hub_environment: {}
    token: ""
"""

RETURN = r"""
lines:
  description: The printed lines.
  returned: success
  type: list
  elements: raw
"""
