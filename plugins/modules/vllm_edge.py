"""The page of the action plugin vllm_edge: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_edge
short_description: Install the edge of a host as planned, or stop it
description:
  - Draws the site's authority, the certificate and the first key where they are missing. Reads the spec and the
    facts of spark_precheck. Does nothing on the host if the edge is as planned.
author: vllm-spark
options:
  state:
    description: C(stopped) is for the edge of a site that is open. Without a state the edge is installed.
    type: str
    choices: [present, stopped]
  authority:
    description: The folder of the site's authority on the controller. Needed unless O(state=stopped).
    type: str
  new_authority:
    description:
      - Whether clients may need the authority's certificate again after this run. A new authority may then replace one
        that is on another controller, and the present one sign more names. Needed unless O(state=stopped).
    type: bool
  passphrase:
    description: The passphrase of the authority's key. Empty for a key without one.
    type: str
attributes:
  check_mode:
    support: full
    description: It decides and predicts without a change.
  diff_mode:
    support: full
    description: The diff has the files that change.
"""

EXAMPLES = r"""
- name: Install the edge
  vllm_spark.toolkit.vllm_edge:
    authority: inventories/site/edge
    new_authority: false
"""

RETURN = r"""
steps:
  description: The changes that were, or in check mode would be, made.
  returned: success
  type: list
  elements: raw
"""
