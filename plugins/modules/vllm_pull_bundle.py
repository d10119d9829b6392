"""The page of the action plugin vllm_pull_bundle: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_pull_bundle
short_description: Write the bundle for a site without internet, or check the one that is there
description:
  - The models and images are those of the specs that all hosts have registered as C(vllm_pull_wanted).
author: vllm-spark
options:
  hosts:
    description: The hosts of the pull.
    type: list
    elements: str
    required: true
  folder:
    description: The folder of the bundle on the controller.
    type: str
    required: true
  registries:
    description: A registry to the URL that is asked in its place.
    type: dict
    required: true
  token:
    description: The token of the hub. Empty for none.
    type: str
    required: true
  environment:
    description: Variables for the hub's library.
    type: dict
    required: true
  signers:
    description: The file of accepted signers.
    type: str
    required: true
  key:
    description: The key that signs. Without it, the operator's own.
    type: str
  unsigned:
    description: Whether a bundle without a signature is accepted. Without this argument it is not.
    type: bool
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Write or check the bundle
  vllm_spark.toolkit.vllm_pull_bundle:
    hosts: "{{ ansible_play_hosts }}"
    folder: /media/bundle
    registries: {}
    token: ""
    environment: {}
    signers: inventories/site/allowed_signers
"""

RETURN = r"""
written:
  description: Whether this run has written the bundle. It pulls nothing to a Spark then.
  returned: success
  type: bool
"""
