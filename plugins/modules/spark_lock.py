#!/usr/bin/python
"""Take and give back the lock of a Spark."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_lock
short_description: Hold a Spark for one run, so that two operators do not change it at once
description:
  - The lock is C(/run/vllm-spark/operator.lock) and says who holds it. It is no change of the Spark, and is gone
    after a reboot.
author: vllm-spark
options:
  state:
    description: What to do with it.
    type: str
    choices: [taken, given]
    required: true
  holder:
    description: Who asks, as C(vllm_spark.lifecycle.operator_lock.Run.holder) says it; RV(holder) has the same.
    type: dict
    required: true
  over:
    description: The id of a run whose lock is replaced if it is that one's.
    type: str
  folder:
    description: Where the lock lies.
    type: path
    default: /run/vllm-spark
attributes:
  check_mode:
    support: none
    description: Nobody takes a lock in check mode, so the role does not ask.
"""

EXAMPLES = r"""
- name: Take it
  spark_lock:
    state: taken
    verb: deploy
"""

RETURN = r"""
done:
  description: Whether it is this run's now, or was this run's and is free now.
  returned: always
  type: bool
holder:
  description: The lock that was found, with C(age_s) and C(connected).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_lock import FOLDER, give, take


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["taken", "given"], "required": True},
            "holder": {"type": "dict", "required": True},
            "over": {"type": "str"},
            "folder": {"type": "path", "default": FOLDER},
        },
    )
    asked = module.params
    if asked["state"] == "taken":
        done, found = take(asked["holder"], asked["over"], asked["folder"])
    else:
        done, found = give(asked["holder"]["run"], asked["folder"])
    module.exit_json(changed=False, done=done, holder=found or {})


if __name__ == "__main__":
    main()
