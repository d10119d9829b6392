"""The page of the action plugin vllm_bench: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_bench
short_description: Measure a deployment by jobs on its hosts
description:
  - Prints each cell that has ended.
author: vllm-spark
options:
  phase:
    description:
      - C(sample) starts the sampler of a rank beside the head, and returns at once. The sampler must run before the
        head measures.
      - C(cells) measures cells on the head. Another rank measures nothing.
      - C(start) starts the deployment and measures the time until its first token, by phase. A worker starts its unit
        and measures nothing.
    type: str
    choices: [sample, cells, start]
    required: true
  plan:
    description: The plan of this host (vllm_plan).
    type: dict
    required: true
  spec:
    description: The spec of this host (vllm_spec). Not of C(start).
    type: dict
  profile:
    description: A profile of the toolkit or the path of one. Not of C(start).
    type: str
  hours:
    description: The duration of a soak. 0 is that of the profile. Not of C(start).
    type: float
  cells:
    description: The cells that the head measures. Not of C(start).
    type: list
    elements: dict
  accepted:
    description: Reasons for which a run counts although it lacks figures. Of C(cells).
    type: list
    elements: str
  run:
    description: The run record of vllm_bench_plan. Of C(cells).
    type: dict
  ends:
    description: Whether no other cells of this run follow. Of C(cells).
    type: bool
  start:
    description: An entry of the C(starts) of vllm_bench_plan. Of C(start).
    type: dict
  note:
    description: A line that is printed before the start. Empty for none. Of C(start).
    type: str
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Measure the cells
  vllm_spark.toolkit.vllm_bench:
    phase: cells
    spec: "{{ spark_precheck_resolved.spec }}"
    plan: "{{ spark_precheck_planned.plan }}"
    profile: quick
    run: "{{ vllm_bench_planned.run }}"
    cells: "{{ cells }}"
    ends: true
"""

RETURN = r"""
failed_cells:
  description: The number of cells that have failed. Of C(cells).
  returned: success
  type: int
measured:
  description: The cell, C(seconds), C(phases) and C(memory_gib); empty on a worker. Of C(start).
  returned: success
  type: dict
"""
