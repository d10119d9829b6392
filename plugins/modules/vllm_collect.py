"""The page of the action plugin vllm_collect: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_collect
short_description: Collect the logs of a host, diagnose them and write the support bundle
description:
  - The logs end in this action. No registered variable and no callback gets them, and no file is left on the host.
author: vllm-spark
options:
  phase:
    description: >-
      C(host) collects from this host. C(pairs) names the bundles of each pair together, from the results that all
      hosts have registered as C(vllm_collect_done).
    type: str
    choices: [host, pairs]
    required: true
  report_dir:
    description: The folder of the bundle on the controller. O(phase=host) needs it.
    type: str
  deployments:
    description: The deployments of the inventory, not checked.
    type: raw
    default: []
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Collect the logs
  vllm_spark.toolkit.vllm_collect:
    phase: host
    report_dir: reports
"""

RETURN = r"""
bundle:
  description: The path of the bundle. Of O(phase=host).
  returned: success
  type: str
deployments:
  description: The states of the deployments on the host. Of O(phase=host).
  returned: success
  type: dict
findings:
  description: What the doctor has found. Of O(phase=host).
  returned: success
  type: list
  elements: raw
lines:
  description: The printed lines. Of O(phase=pairs).
  returned: success
  type: list
  elements: raw
"""
