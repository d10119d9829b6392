"""The page of the action plugin spark_lock: its arguments, which SparkAction checks, and its result."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_lock
short_description: Take the operator lock of a host for this run of ansible-playbook, or release it
description:
  - A lock whose run has ended is taken over. Any other lock refuses the task and names its holder.
author: vllm-spark
options:
  state:
    description: C(taken) takes the lock, C(given) releases it.
    type: str
    choices: [taken, given]
    required: true
  folder:
    description: The folder of the lock on the host.
    type: str
    required: true
  verb:
    description: The verb that takes the lock. O(state=taken) needs it.
    type: str
  break_lock:
    description: Whether to take the lock from a run that still lives or cannot be seen. O(state=taken) needs it.
    type: bool
attributes:
  check_mode:
    support: none
    description: A check takes no lock, so the role skips this action.
"""

EXAMPLES = r"""
- name: Take the lock
  vllm_spark.toolkit.spark_lock:
    state: taken
    folder: /run/vllm-spark
    verb: deploy
    break_lock: false
"""

RETURN = r"""
taken:
  description: Whether this run has the lock now.
  returned: success
  type: bool
"""
