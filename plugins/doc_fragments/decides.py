"""What the pages of the actions that decide on the controller have in common."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment vllm_spark.toolkit.decides."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: It decides and predicts without a change.
    support: full
"""
