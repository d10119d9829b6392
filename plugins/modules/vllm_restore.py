#!/usr/bin/python
"""Bring the launch of before back, whose files a deploy has kept."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_restore
short_description: Place the kept files of a deployment's launch of before
description:
  - Places the launch, env and records of C(previous/) again. Needs no network, starts nothing.
author: vllm-spark
options:
  folder:
    description: The deployment's folder.
    type: path
    required: true
  keep:
    description:
      - What becomes of the files that they replace. C(failed), after a deploy that missed its gates - they go to
        C(failed/), and what was C(previous/) before becomes it again.
      - C(previous), after a rollback by hand of a launch that was good - the two change places. What is under way
        stays in C(swapping/) until O(state=settled), and a run that finds it goes on from there.
    type: str
    choices: [failed, previous]
    default: failed
  launch:
    description: With O(keep=previous), the fingerprint of the launch to have; nothing changes where it is there.
    type: str
    default: ""
  state:
    description: C(settled) says that the launch has been judged, and nothing is under way any more.
    type: str
    choices: [back, settled]
    default: back
attributes:
  check_mode:
    support: full
    description: It says what would come back.
  diff_mode:
    support: full
    description: It shows the launch.
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

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_files import PREVIOUS, SWAPPING, bring_back, document, finish_swap, settle_swap, swap


def record_of(folder):
    return document(os.path.join(folder, "deployed.json"))


def gates_of(folder):
    return document(os.path.join(folder, "gates.json"))


def launch_text(folder):
    try:
        with open(os.path.join(folder, "launch"), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def shown(folder, source):
    """The launch as it is and as it is going to be; it holds no secret."""
    path = os.path.join(folder, "launch")
    return {
        "before_header": path,
        "after_header": path,
        "before": launch_text(folder),
        "after": launch_text(source),
    }


def source_of(module, folder, launch):
    """The folder that holds the launch of this fingerprint: the current, a prepared, or the previous one."""
    sources = (os.path.join(folder, SWAPPING), folder, os.path.join(folder, PREVIOUS))
    found = [source for source in sources if launch and record_of(source).get("launch") == launch]
    if not found:
        module.fail_json(msg=f"{folder} has no launch {launch}. Nothing was changed.")
    return found[0]


def exchange(module, folder, launch):
    source = source_of(module, folder, launch)
    restored, gates, diff = record_of(source), gates_of(source), shown(folder, source)
    changed = source != folder or os.path.isdir(os.path.join(folder, SWAPPING))
    if not module.check_mode:
        # What is under way is carried through even where the other launch is wanted now, or two would be mixed.
        finish_swap(folder)
        if record_of(folder).get("launch") != launch:
            swap(folder)
        restored = record_of(folder)
    module.exit_json(changed=changed, restored=restored, gates=gates, diff=diff if changed else {})


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "keep": {"type": "str", "choices": ["failed", "previous"], "default": "failed"},
            "launch": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["back", "settled"], "default": "back"},
        },
        supports_check_mode=True,
    )
    folder = module.params["folder"]
    previous = os.path.join(folder, PREVIOUS)
    if module.params["state"] == "settled":
        if not module.check_mode:
            settle_swap(folder)
        module.exit_json(changed=False, restored={}, gates={})
    if module.params["keep"] == "previous":
        exchange(module, folder, module.params["launch"])
    if not os.path.exists(os.path.join(previous, "launch")):
        module.exit_json(changed=False, restored={}, gates={})
    restored, gates, diff = record_of(previous), gates_of(previous), shown(folder, previous)
    if not module.check_mode:
        bring_back(folder)
    module.exit_json(changed=True, restored=restored, gates=gates, diff=diff)


if __name__ == "__main__":
    main()
