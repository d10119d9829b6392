"""The page of the action plugin vllm_sbom: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_sbom
short_description: Write what the deployments of a site run as a CycloneDX document
description:
  - Reads files on this machine alone.
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
  recipe_folders:
    description: Folders that contain recipes.
    type: list
    elements: str
    required: true
  lock_file:
    description: The lock file.
    type: str
    required: true
  file:
    description: The file to write on this machine.
    type: str
    required: true
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Write the document
  vllm_spark.toolkit.vllm_sbom:
    deployments: "{{ vllm_deployments }}"
    limit: "{{ ansible_play_hosts_all }}"
    recipe_folders: [recipes]
    lock_file: inventories/site/lock.yml
    file: sbom.cdx.json
"""

RETURN = r"""
"""
