"""The page of the action plugin vllm_pull_carry: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_pull_carry
short_description: Serve the bundle on this machine to a Spark
description:
  - The server listens on the loopback device alone. Ansible's SSH connection forwards it to the Spark, unless the Spark
    is this machine. Does nothing in check mode.
author: vllm-spark
options:
  folder:
    description: The folder of the bundle. Needed to open.
    type: str
  token:
    description: The token that the server expects. Needed to open.
    type: str
  opened:
    description: The result of the task that has opened the connection. With it, this task closes the connection.
    type: dict
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Serve the bundle
  vllm_spark.toolkit.vllm_pull_carry:
    folder: /media/bundle
    token: "{{ token }}"
"""

RETURN = r"""
process:
  description: The id of the server's process.
  returned: success
  type: int
forward:
  description: The forwarding of the SSH connection. Empty without SSH.
  returned: success
  type: str
manifests:
  description: FOLDER/COMMIT of each model to the SHA-256 of its manifest.
  returned: success
  type: dict
"""
