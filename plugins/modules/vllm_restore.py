#!/usr/bin/python
"""Restore the launch before, whose files a deploy has kept."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_restore
short_description: Make an earlier launch of a deployment current again
description:
  - Replaces the link C(current) of the deployment's folder. Needs no network, starts nothing.
author: vllm-spark
options:
  folder:
    description: The deployment's folder.
    type: path
    required: true
  launch:
    description:
      - The fingerprint of the launch that an operator wants. It and the current one change places, and C(swapping)
        remains until O(state=settled). Nothing changes if it is current.
      - Empty after a deploy that failed its gates. The previous launch becomes current, the current one C(failed).
    type: str
    default: ""
  state:
    description:
      - C(restored) restores a launch.
      - C(settled) only ends an exchange, after the gates have judged the launch.
      - C(saved) copies all launches to O(copy), and ends an exchange.
      - C(put_back) makes the launches those of O(copy) again, after the launch that was current then has been deployed
        again, and removes the copy. Nothing changes without a copy.
    type: str
    choices: [restored, settled, saved, put_back]
    default: restored
  env_content:
    description:
      - An env file with all secrets of today. The restored launch gets their values, and none of an earlier day. Of
        C(restored), which requires it.
    type: str
  copy:
    description: The folder of the copy. Of C(saved) and C(put_back).
    type: path
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
    env_content: "{{ vllm_secrets | vllm_spark.toolkit.vllm_env }}"
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
gone:
  description: The names of its secrets that have no value today.
  returned: always
  type: list
  elements: str
gates:
  description: The parameters of its gates; empty if an older toolkit has placed it.
  returned: always
  type: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_edge
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_files import (
    adopt,
    put_back,
    restore_previous,
    save,
    settle,
    swap,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_host_layout import PREVIOUS, SWAPPING
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_text, text_diff
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launches import edited
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import gates_of, record_of

COPIES = {"saved": save, "put_back": put_back}


def diff_of(folder: str, source: str) -> dict[str, str]:
    """Return the diff of the launch script, which contains no secret."""
    path = os.path.join(folder, "launch")
    return text_diff(path, read_text(path), read_text(os.path.join(source, "launch")) or "")


def source_of(folder: str, launch: str) -> str:
    """Return the folder with the launch to restore; empty if there is none."""
    previous = os.path.join(folder, PREVIOUS)
    if not launch:
        return previous if os.path.exists(os.path.join(previous, "launch")) else ""
    # An older toolkit may have been interrupted before it has placed the launch.
    sources = (os.path.join(folder, SWAPPING), folder, previous)
    return next((source for source in sources if record_of(source).get("launch") == launch), "")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "launch": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["restored", "settled", *COPIES], "default": "restored"},
            "env_content": {"type": "str", "no_log": True},
            "copy": {"type": "path"},
        },
        supports_check_mode=True,
        required_if=[("state", "restored", ["env_content"]), *(("state", state, ["copy"]) for state in COPIES)],
    )
    folder, launch, state = (module.params[name] for name in ("folder", "launch", "state"))
    if state in COPIES:
        done = not module.check_mode and COPIES[state](folder, module.params["copy"])
        module.exit_json(changed=done, restored={}, edited=None, gone=[], gates={})
    source = "" if state == "settled" else source_of(folder, launch)
    if launch and not source:
        module.fail_json(msg=f"{folder} has no launch {launch}. Nothing was changed.")
    changed = bool(source) and source != folder
    diff = diff_of(folder, source) if changed else {}
    gone: list[str] = []
    if not module.check_mode:
        adopt(folder)
        if state == "settled":
            settle(folder)
        elif launch and record_of(folder).get("launch") != launch:
            gone = swap(folder, module.params["env_content"])
        elif source and not launch:
            gone = restore_previous(folder, module.params["env_content"])
        source = folder if source else ""
    restored, gates = (record_of(source), gates_of(source)) if source else ({}, {})
    if changed and not module.check_mode:
        spark_edge.follow(bool(gates.get("socket")))
    edit = edited(source) if source else None
    module.exit_json(changed=changed, restored=restored, edited=edit, gone=gone, gates=gates, diff=diff)


if __name__ == "__main__":
    main()
