#!/usr/bin/python
"""Bring the launch of before back, whose files a deploy has kept."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_restore
short_description: Place the kept files of a deployment's launch of before
description:
  - Places the launch, env and records of C(previous/) again. What they replace is kept in C(failed/), and what was
    C(previous/) before becomes it again. Needs no network, starts nothing.
author: vllm-spark
options:
  folder:
    description: The deployment's folder.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: It says what would come back.
"""

EXAMPLES = r"""
- name: Bring it back
  vllm_restore:
    folder: /etc/vllm-spark/demo
"""

RETURN = r"""
restored:
  description: The record of the launch that came back; empty where nothing was kept.
  returned: always
  type: dict
gates:
  description: What its gates need to know; empty where a toolkit without this has placed it.
  returned: always
  type: dict
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_files import PREVIOUS, bring_back


def document(path):
    """The object in a JSON file; empty where there is none, or a broken one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def main():
    module = AnsibleModule(
        argument_spec={"folder": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    folder = module.params["folder"]
    previous = os.path.join(folder, PREVIOUS)
    if not os.path.exists(os.path.join(previous, "launch")):
        module.exit_json(changed=False, restored={}, gates={})
    restored, gates = (document(os.path.join(previous, name)) for name in ("deployed.json", "gates.json"))
    if not module.check_mode:
        bring_back(folder)
    module.exit_json(changed=True, restored=restored, gates=gates)


if __name__ == "__main__":
    main()
