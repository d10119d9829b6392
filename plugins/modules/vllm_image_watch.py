"""The page of the action plugin vllm_image_watch: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_image_watch
short_description: Wait for an async job that builds an image, and print its progress
description:
  - Fails with the end of the build's log if the build fails.
author: vllm-spark
options:
  job:
    description: The id of the async task.
    type: str
    required: true
  results_file:
    description: The results_file of the async task.
    type: str
    required: true
  image:
    description: The image that is built.
    type: str
    required: true
  timeout_s:
    description: The time limit of the job, in seconds. The job itself ends then.
    type: int
    required: true
  log:
    description: The log of the build on the host.
    type: str
    required: true
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Wait for the build
  vllm_spark.toolkit.vllm_image_watch:
    job: "{{ building.ansible_job_id }}"
    results_file: "{{ building.results_file }}"
    image: example/engine:derived
    timeout_s: 3600
    log: /var/cache/vllm-spark/build.log
"""

RETURN = r"""
seconds:
  description: The seconds that the task has waited.
  returned: success
  type: float
"""
