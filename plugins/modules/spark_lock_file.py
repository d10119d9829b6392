#!/usr/bin/python
"""Take and release the operator lock of a Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_lock_file
short_description: Lock a Spark for one run, so that two operators do not change it at once
description:
  - The lock is C(/run/vllm-spark/operator.lock) and names the run that has it. It does not count as a change.
author: vllm-spark
options:
  state:
    description: C(taken) takes the lock, C(given) releases it.
    type: str
    choices: [taken, given]
    required: true
  holder:
    description: The run that takes or releases the lock (C(module_utils/spark_lock.py), C(this_run)).
    type: dict
    required: true
  over:
    description: The id of a run whose lock is replaced. The lock of any other run is not.
    type: str
  folder:
    description: The folder of the lock.
    type: path
    default: /run/vllm-spark
attributes:
  check_mode:
    support: none
    description: A check takes no lock, so the role skips this module.
"""

EXAMPLES = r"""
- name: Take the lock
  spark_lock_file:
    state: taken
    holder: {run: 0a1b2c3d, user: anna, verb: deploy}
"""

RETURN = r"""
done:
  description: True if this run has the lock now, or if it had the lock and the lock is free now.
  returned: always
  type: bool
holder:
  description: The lock before, with C(age_s) and C(connected); empty if it was free.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_lock import FOLDER, give, take


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["taken", "given"], "required": True},
            "holder": {"type": "dict", "required": True},
            "over": {"type": "str"},
            "folder": {"type": "path", "default": FOLDER},
        },
    )
    params = module.params
    if params["state"] == "taken":
        done, holder = take(params["holder"], params["over"], params["folder"])
    else:
        done, holder = give(params["holder"]["run"], params["folder"])
    module.exit_json(changed=False, done=done, holder=holder or {})


if __name__ == "__main__":
    main()
