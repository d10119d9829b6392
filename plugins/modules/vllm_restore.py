#!/usr/bin/python
"""Restore the launch before, whose files a deploy has kept."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_restore
short_description: Place the kept files of a deployment's launch before
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
      - The folder for the files that are replaced. C(failed), after a deploy that failed its gates - they go to
        C(failed/), and the launch before that of C(previous/) becomes C(previous/).
      - C(previous), after an operator's rollback of a good launch - the two launches change places. The prepared
        files stay in C(swapping/) until O(state=settled), and a run that finds them continues from there.
    type: str
    choices: [failed, previous]
    default: failed
  launch:
    description: With O(keep=previous), the fingerprint of the desired launch; nothing changes if it is current.
    type: str
    default: ""
  state:
    description: C(back) restores. C(settled) ends the exchange after the gates have judged the launch.
    type: str
    choices: [back, settled]
    default: back
attributes:
  check_mode:
    support: full
    description: The module returns the launch that would be restored.
  diff_mode:
    support: full
    description: The diff has the launch.
"""

EXAMPLES = r"""
- name: Restore the launch before
  vllm_restore:
    folder: /etc/vllm-spark/demo
"""

RETURN = r"""
restored:
  description: The record of the restored launch; empty if no launch was kept.
  returned: always
  type: dict
edited:
  description: Whether the restored launch script is not the one that was deployed; null if that is unknown.
  returned: always
  type: bool
gates:
  description: The parameters of its gates; empty if an older toolkit has placed it.
  returned: always
  type: dict
"""

import os
from typing import NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_files import (
    PREVIOUS,
    SWAPPING,
    finish_swap,
    restore_previous,
    settle_swap,
    swap,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_text
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launches import edited
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import gates_of, record_of


def diff_of(folder: str, source: str) -> dict[str, str]:
    """Return the diff of the launch script, which contains no secret."""
    path = os.path.join(folder, "launch")
    return {
        "before_header": path,
        "after_header": path,
        "before": read_text(path) or "",
        "after": read_text(os.path.join(source, "launch")) or "",
    }


def source_of(module: AnsibleModule, folder: str, launch: str) -> str:
    """Return the folder with the launch of this fingerprint: the prepared, the current or the previous one."""
    sources = (os.path.join(folder, SWAPPING), folder, os.path.join(folder, PREVIOUS))
    matches = [source for source in sources if launch and record_of(source).get("launch") == launch]
    if not matches:
        module.fail_json(msg=f"{folder} has no launch {launch}. Nothing was changed.")
    return matches[0]


def exchange(module: AnsibleModule, folder: str, launch: str) -> NoReturn:
    source = source_of(module, folder, launch)
    restored, gates, diff = record_of(source), gates_of(source), diff_of(folder, source)
    by_hand = edited(source)
    changed = source != folder or os.path.isdir(os.path.join(folder, SWAPPING))
    if not module.check_mode:
        # An exchange in progress is completed even if the other launch is desired now; otherwise two would be mixed.
        finish_swap(folder)
        if record_of(folder).get("launch") != launch:
            swap(folder)
        restored = record_of(folder)
    module.exit_json(changed=changed, restored=restored, edited=by_hand, gates=gates, diff=diff if changed else {})


def main() -> None:
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
        module.exit_json(changed=False, restored={}, edited=None, gates={})
    if module.params["keep"] == "previous":
        exchange(module, folder, module.params["launch"])
    if not os.path.exists(os.path.join(previous, "launch")):
        module.exit_json(changed=False, restored={}, edited=None, gates={})
    by_hand = edited(previous)
    restored, gates, diff = record_of(previous), gates_of(previous), diff_of(folder, previous)
    if not module.check_mode:
        restore_previous(folder)
    module.exit_json(changed=True, restored=restored, edited=by_hand, gates=gates, diff=diff)


if __name__ == "__main__":
    main()
