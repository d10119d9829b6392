"""The page of the action plugin vllm_bench_plan: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_bench_plan
short_description: Plan a measurement of a deployment
description:
  - Decides the cells, and the changes of the server that they need. A measured change is left out, so that an
    interrupted run continues. The ranks of a pair plan alike, and the plan of the head counts.
author: vllm-spark
options:
  spec:
    description: The spec of this host (vllm_spec).
    type: dict
    required: true
  plan:
    description: The plan of this host (vllm_plan).
    type: dict
    required: true
  profile:
    description: A profile of the toolkit or the path of one.
    type: str
    required: true
  hours:
    description: The duration of a soak. 0 is that of the profile.
    type: float
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Plan the measurement
  vllm_spark.toolkit.vllm_bench_plan:
    spec: "{{ spark_precheck_resolved.spec }}"
    plan: "{{ spark_precheck_planned.plan }}"
    profile: quick
"""

RETURN = r"""
head:
  description: The head of the deployment.
  returned: success
  type: str
run:
  description: The run record.
  returned: success
  type: dict
variants:
  description: The changes of the server with their cells, as JSON.
  returned: success
  type: list
  elements: raw
as_is:
  description: Whether the server is measured as it is.
  returned: success
  type: bool
changes:
  description: Whether changes of the server are measured.
  returned: success
  type: bool
starts:
  description: One entry for each start to measure.
  returned: success
  type: list
  elements: raw
beside_head:
  description: Whether a sampler runs on this host.
  returned: success
  type: bool
has_evidence:
  description: Whether the hosts will have files.
  returned: success
  type: bool
put_back_after_interruption:
  description: Whether the verb runs once more after Ctrl-C.
  returned: success
  type: bool
"""
