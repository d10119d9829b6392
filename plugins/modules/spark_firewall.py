#!/usr/bin/python
"""Load the firewall table of a host under a guard, and keep it when it is confirmed."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_firewall
short_description: Load the firewall table of a host under a guard
description:
  - A new table is on trial first. It is loaded, and a transient systemd timer restores the table before it, or none.
  - O(state=kept), sent over a new connection, stops the timer, writes the file and enables the unit. A host that loses
    its power during a trial boots with its old table.
author: vllm-spark
options:
  state:
    description: C(present) begins a trial if something differs. C(kept) confirms it.
    type: str
    choices: [present, kept]
    default: present
  table:
    description: The file of nft. Required if O(state=present).
    type: str
    default: ""
  unit:
    description: The unit that loads it at boot. Required if O(state=present).
    type: str
    default: ""
  guard_s:
    description: Seconds until the timer ends the trial.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: The module predicts every change; nft does not judge the table then.
  diff_mode:
    support: full
    description: The diff has the table. Of the unit it says that it changes.
"""

EXAMPLES = r"""
- name: Load the table
  spark_firewall:
    table: "{{ table }}"
    unit: "{{ unit }}"
"""

RETURN = r"""
guard:
  description: The systemd timer that ends a trial.
  returned: state is present
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_firewall
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    CommandError,
    read_text,
    same_everywhere,
    text_diff,
    write_file,
)

SEE = "See docs/runbooks/firewall-table.md"


def present(module: AnsibleModule, table: str, unit: str, guard_s: int) -> None:
    file, unit_file = spark_firewall.FILE, spark_firewall.UNIT_FILE
    old_table, old_unit = read_text(file) or "", read_text(unit_file) or ""
    diff = []
    if old_table != table:
        diff.append(text_diff(file, old_table, table))
    if old_unit != unit:
        diff.append(same_everywhere(unit_file, old_unit, unit))
    if not module.check_mode:
        if old_unit != unit:
            write_file(unit_file, unit, spark_firewall.FILE_MODE)
        spark_firewall.begin_trial(table, guard_s)
    module.exit_json(changed=True, guard=f"{spark_firewall.GUARD}.timer", diff=diff if module._diff else [])


def kept(module: AnsibleModule) -> None:
    if not module.check_mode and not spark_firewall.keep_trial():
        module.fail_json(
            msg="the guard has restored the firewall table before this one already — expected: a confirmation before "
            "its time was over. Fix: run it again, with a larger spark_firewall_guard_s; "
            f"`sudo journalctl -u {spark_firewall.GUARD}` has its messages. {SEE}"
        )
    module.exit_json(changed=True)


def main() -> None:
    text = {"type": "str", "default": ""}
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "kept"], "default": "present"},
            "table": text,
            "unit": text,
            "guard_s": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
        required_if=[("state", "present", ["table", "unit"])],
    )
    params = module.params
    try:
        if params["state"] == "kept":
            kept(module)
        present(module, params["table"], params["unit"], params["guard_s"])
    except (OSError, CommandError) as error:
        module.fail_json(
            msg=f"the firewall table was not loaded: {error} — expected: nft takes it. The table before it stays. Fix: "
            f"read `sudo journalctl -u {spark_firewall.UNIT}` and `sudo nft list ruleset` on this Spark. {SEE}"
        )


if __name__ == "__main__":
    main()
