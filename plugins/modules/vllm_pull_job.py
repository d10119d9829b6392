"""The page of the action plugin vllm_pull_job: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_pull_job
short_description: Start a long program on the host, print its progress, and judge its result
description:
  - The programs are the transfer jobs of the toolkit. In check mode none starts.
author: vllm-spark
options:
  job:
    description: The id of the transfer job.
    type: str
    required: true
  request:
    description: What the job is to do. Needed unless O(stop).
    type: dict
  argv:
    description: The argv of a job that is not a program of the toolkit. Without it, that of the job.
    type: list
    elements: str
  token:
    description: The token of the job. Empty for none.
    type: str
  environment_variables:
    description: Variables of the job.
    type: dict
  wait:
    description: >-
      Whether to wait for the end, as without this argument. False is for a job that serves until it is stopped; the
      task waits until its port is open.
    type: bool
  manifests:
    description: The manifests of the sender, FOLDER/COMMIT to SHA-256, for a request that receives models.
    type: dict
  pushed:
    description: The results of the head's tasks, for a request that receives a built image.
    type: list
    elements: dict
  stop:
    description: Whether the job is only ended.
    type: bool
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Stop the server of images
  vllm_spark.toolkit.vllm_pull_job:
    job: serve-images
    stop: true
"""

RETURN = r"""
result:
  description: The result of the job.
  returned: success
  type: dict
"""
