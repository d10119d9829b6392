"""The page of the action plugin vllm_edge_key: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_edge_key
short_description: Add, revoke or list the keys of an edge, and print the persons that have one
description:
  - C(compared) prints the persons whose key is not the same on all hosts, from the results that all hosts have
    registered as C(__vllm_edge_keys).
author: vllm-spark
options:
  state:
    description: What to do.
    type: str
    choices: [present, absent, listed, compared]
    required: true
  name:
    description: The person.
    type: str
  hash:
    description: The SHA-256 of the key as 64 hexadecimal digits. The key itself stays on the controller.
    type: str
  may_switch:
    description: Whether a request of this key may start a model that is not active.
    type: bool
  class:
    description: C(batch) requests leave a part of the engine to the others.
    type: str
    choices: [interactive, batch]
  tokens_a_day:
    description: After so many tokens of a day the key is refused until midnight. 0 sets no quota.
    type: int
extends_documentation_fragment: vllm_spark.toolkit.decides
"""

EXAMPLES = r"""
- name: Revoke a key
  vllm_spark.toolkit.vllm_edge_key:
    state: absent
    name: ada
"""

RETURN = r"""
edge:
  description: Whether this host has an edge.
  returned: success
  type: bool
names:
  description: The persons that have a key afterwards.
  returned: success
  type: list
  elements: raw
"""
