#!/usr/bin/python
"""Add, revoke or list the keys of an edge, without a restart."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_edge_key_file
short_description: Add, revoke or list the keys of an edge, without a restart
description:
  - Changes the map of key hashes on this host, in the file and in the memory of a running HAProxy.
author: vllm-spark
options:
  state:
    description: What to do.
    type: str
    choices: [present, absent, listed]
    required: true
  name:
    description: The person.
    type: str
    default: ""
  hash:
    description: The SHA-256 of the key as 64 hexadecimal digits. The key itself stays on the controller.
    type: str
    default: ""
  may_switch:
    description: Whether a request of this key may start a model that is not active.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: The module predicts the change.
"""

EXAMPLES = r"""
- name: Revoke a key
  vllm_edge_key_file:
    state: absent
    name: ada
"""

RETURN = r"""
edge:
  description: Whether this host has an edge. Without one nothing changes.
  returned: always
  type: bool
names:
  description: The persons that have a key afterwards.
  returned: always
  type: list
  elements: str
may_switch:
  description: Those of them whose requests may start a model.
  returned: always
  type: list
  elements: str
keys:
  description: SHA-256 of each key to its person, with the right to start a model, as they are afterwards.
  returned: always
  type: dict
replaced:
  description: Whether the person had another key before.
  returned: always
  type: bool
running:
  description: Whether a running HAProxy has taken the change.
  returned: always
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import CommandError, read_text

# In the configuration of an edge that separates a person from the right.
READS_RIGHTS = "field(1,/)"


def desired(current: dict[str, str], state: str, name: str, key_hash: str, right: str = "") -> dict[str, str]:
    """Return the keys after the change: hash -> name and right. A name has one key."""
    if state == "listed":
        return current
    others = {key: owner for key, owner in current.items() if owner.removesuffix(spark_edge.MAY_SWITCH) != name}
    return others if state == "absent" else {**others, key_hash: f"{name}{right}"}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "listed"], "required": True},
            "name": {"type": "str", "default": ""},
            # The hash of 256 random bits does not lead to the key. no_log would hide it in no other place.
            "hash": {"type": "str", "default": "", "no_log": False},
            "may_switch": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    edge = os.path.isfile(spark_edge.CONFIG)
    current = spark_edge.read_keys()
    if params["may_switch"] and edge and READS_RIGHTS not in (read_text(spark_edge.CONFIG) or ""):
        module.fail_json(
            msg=f"{spark_edge.CONFIG} is of an older toolkit, which takes the right for a part of the name — expected: "
            "an edge that knows rights. Fix: ansible-playbook deploy.yml. Then the same command. "
            "See docs/runbooks/edge-key.md"
        )
    right = spark_edge.MAY_SWITCH if params["may_switch"] else ""
    keys = desired(current, params["state"], params["name"], params["hash"], right) if edge else current
    running = False
    if keys != current and not module.check_mode:
        try:
            # The file first: an edge that starts meanwhile reads it.
            spark_edge.write_keys(keys)
            running = spark_edge.apply_keys(keys)
        except (OSError, CommandError, spark_edge.EdgeError) as error:
            module.fail_json(
                msg=f"the keys in {spark_edge.KEYS} are changed, and the running edge has not taken them: {error} — "
                "expected: both are the same. Fix: sudo systemctl reload vllm-edge. See docs/runbooks/edge-unit.md"
            )
    module.exit_json(
        changed=keys != current,
        edge=edge,
        names=spark_edge.persons(keys),
        may_switch=spark_edge.may_switch(keys),
        keys=keys,
        replaced=params["state"] == "present" and params["name"] in spark_edge.persons(current),
        running=running,
    )


if __name__ == "__main__":
    main()
