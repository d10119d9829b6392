"""The page of the action plugin vllm_bench_evidence: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_bench_evidence
short_description: Read the files of a measurement, and write its evidence on the controller
description:
  - Prints the verdict of what it writes, and writes what the evidence in the folder says about these Sparks. Another
    rank than the head writes nothing.
author: vllm-spark
options:
  phase:
    description:
      - C(read) reads the evidence of the head and the samples of another rank, with the clock of the host.
      - C(fetch) merges what all hosts have read.
      - C(starts) writes the evidence of measured starts.
    type: str
    choices: [read, fetch, starts]
    required: true
  spec:
    description: The spec of this host (vllm_spec).
    type: dict
    required: true
  profile:
    description: A profile of the toolkit or the path of one. Not of C(starts).
    type: str
  folder:
    description: The folder of the evidence on the controller. Not of C(read).
    type: str
  constants_file:
    description: The file of what the runs say about these Sparks, which this writes. Not of C(read).
    type: str
  accepted:
    description: Reasons for which a run counts although it lacks figures. Of C(fetch).
    type: list
    elements: str
  run:
    description: The run record of vllm_bench_plan. Of C(starts).
    type: dict
  starts:
    description: The C(measured) of each start of vllm_bench. Of C(starts).
    type: list
    elements: dict
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Read the files
  vllm_spark.toolkit.vllm_bench_evidence:
    phase: read
    spec: "{{ spark_precheck_resolved.spec }}"
    profile: quick
"""

RETURN = r"""
path:
  description: The file on the host. Of C(read).
  returned: success
  type: str
reading:
  description: The text of the file, and the clocks. Of C(read).
  returned: success
  type: dict
evidence:
  description: The path of the evidence; empty on another rank than the head. Of C(fetch) and C(starts).
  returned: success
  type: str
refusal:
  description: >-
    The refusal of a run with cells that have no figures, or of a broken file. The file must not stay on the host
    then. Otherwise empty. Of C(fetch).
  returned: success
  type: str
"""
