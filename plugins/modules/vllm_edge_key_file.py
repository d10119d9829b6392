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
  class:
    description: C(batch) requests leave a part of the engine to the others.
    type: str
    choices: [interactive, batch]
    default: interactive
  tokens_a_day:
    description: After so many tokens of a day the key is refused until midnight. 0 sets no quota.
    type: int
    default: 0
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
keys:
  description: SHA-256 of each key to its entry (person, right, class, quota), as they are afterwards.
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
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_key import (
    BATCH,
    CLASSES,
    KeyEntry,
    parse,
    persons,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import CommandError, read_text

# In the configuration of an edge that reads every field of an entry, and of one that has a share for batch.
READS_FIELDS, HAS_SHARE = "map_str_int", "acl batch"


def desired(current: dict[str, str], state: str, entry: KeyEntry, key_hash: str) -> dict[str, str]:
    """Return the keys after the change: hash -> entry. A person has one key."""
    if state == "listed":
        return current
    others = {key: owner for key, owner in current.items() if parse(owner).person != entry.person}
    return others if state == "absent" else {**others, key_hash: str(entry)}


def refusal(entry: KeyEntry) -> str:
    """Return why the edge that is here does not take an entry, or nothing."""
    if entry.has_more and READS_FIELDS not in (read_text(spark_edge.CONFIG) or ""):
        return (
            f"{spark_edge.CONFIG} is of an older toolkit, which takes rights, class and quota for a part of the name — "
            "expected: an edge that knows them. Fix: ansible-playbook deploy.yml. Then the same command. "
            "See docs/runbooks/edge-key.md"
        )
    if entry.batch and HAS_SHARE not in (read_text(spark_edge.ROUTE) or ""):
        return (
            f"the edge has no share for keys of the class {BATCH} — expected: vllm_edge.fair true, and deployed. "
            "Fix: ansible-playbook deploy.yml. With vllm_edge: {fair: true} in the inventory. Then the same command. "
            "See docs/runbooks/edge-key.md"
        )
    return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent", "listed"], "required": True},
            "name": {"type": "str", "default": ""},
            # The hash of 256 random bits does not lead to the key. no_log would hide it in no other place.
            "hash": {"type": "str", "default": "", "no_log": False},
            "may_switch": {"type": "bool", "default": False},
            "class": {"type": "str", "choices": list(CLASSES), "default": CLASSES[0]},
            "tokens_a_day": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    params = module.params
    edge = os.path.isfile(spark_edge.CONFIG)
    current = spark_edge.read_keys()
    entry = KeyEntry(params["name"], params["may_switch"], params["class"] == BATCH, params["tokens_a_day"])
    if edge and (why := refusal(entry)):
        module.fail_json(msg=why)
    keys = desired(current, params["state"], entry, params["hash"]) if edge else current
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
        names=persons(keys),
        keys=keys,
        replaced=params["state"] == "present" and params["name"] in persons(current),
        running=running,
    )


if __name__ == "__main__":
    main()
