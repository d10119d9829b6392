"""The page of the action plugin vllm_notify: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_notify
short_description: Let a host tell its owner about troubles, and report what it tells
description:
  - C(install) reads the facts of the host, which are registered as C(spark_precheck_box). Without settings it removes
    what an earlier run has installed.
author: vllm-spark
options:
  phase:
    description: What to do.
    type: str
    choices: [install, report]
    required: true
  settings:
    description: The variable C(vllm_notify), not yet checked. C(install) needs it.
    type: raw
  secrets:
    description: Secrets by variable name. C(install) needs them.
    type: dict
  test:
    description: Send a test message from the host. C(report) needs it.
    type: bool
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Send a test message
  vllm_spark.toolkit.vllm_notify:
    phase: report
    test: true
"""

RETURN = r"""
changed_paths:
  description: The files that were, or in check mode would be, written. Of C(install).
  returned: if a file differs
  type: list
  elements: str
"""
