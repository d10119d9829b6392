#!/usr/bin/python
"""Append a judged launch to the history of a host, or read the history: one line of JSON per launch."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_history_file
short_description: Append a judged launch to the history, or read the history
description:
  - With O(entry) it appends a line to the history of O(deployment), from the entry and from the record in O(folder).
    A history is bounded; its oldest lines are removed first. Without O(entry) it reads.
author: vllm-spark
options:
  entry:
    description: The facts of the launch that the controller knows.
    type: dict
    default: {}
  folder:
    description: The folder of the deployment, whose deployed.json describes the launch.
    type: path
    default: ""
  deployment:
    description: The deployment; empty to read the histories of all.
    type: str
    default: ""
  last:
    description: The number of entries of each deployment to return.
    type: int
    default: 20
attributes:
  check_mode:
    support: full
    description: It writes nothing.
"""

EXAMPLES = r"""
- name: Read the history of one deployment
  vllm_history_file:
    deployment: demo
"""

RETURN = r"""
entries:
  description: The last entries, the oldest first. C(before) is the launch before, C(changes) what has changed since.
    C(edited) is true for a launch that was edited by hand after its deploy.
  returned: always
  type: list
  elements: dict
"""

import glob
import os
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_text, write_file
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launch_difference import differences
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launches import commands, edited
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import (
    MAX_LINES,
    history_entries,
    record_of,
)

HISTORY = layout.HISTORY_DIR
# More changes, or longer ones, are those of another recipe.
MAX_CHANGES, MAX_CHARACTERS = 20, 120
# The keys of deployed.json that distinguish launches. The launch before has its own line.
RECORD = (
    "deployment",
    "rank",
    "recipe",
    "recipe_sha256",
    "image",
    "digest",
    "derived",
    "engine",
    "model",
    "launch",
    "toolkit",
)


def since(folder: str, launch: str, path: str) -> dict[str, Any]:
    """Return the fingerprint of the launch before in this history, empty for the first one, and what has changed since.
    `changes` is absent if that launch is not on the host any more."""
    before = next((entry["launch"] for entry in reversed(history_entries(path)) if entry.get("launch")), "")
    known = commands(folder)
    if before == launch:
        return {"before": before, "changes": []}
    if not (before in known and launch in known):
        return {"before": before}
    changes = differences(known[before], known[launch])
    return {"before": before, "changes": [change[:MAX_CHARACTERS] for change in changes[:MAX_CHANGES]]}


def lines(path: str) -> list[str]:
    return (read_text(path) or "").splitlines()


def append(module: AnsibleModule, path: str, entry: dict[str, Any], record: dict[str, Any]) -> None:
    """Append an entry in one write. A line that a loss of power has cut is ended first, so only that line is lost."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    document = {"time": now, **{key: record[key] for key in RECORD if key in record}, **entry}
    folder = module.params["folder"]
    if launch := record.get("launch"):
        document |= since(folder, launch, path)
    if edited(folder):
        document["edited"] = True
    line = module.jsonify(document) + "\n"
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    known = lines(path)
    if len(known) >= MAX_LINES:
        write_file(path, "".join(f"{old}\n" for old in known[1 - MAX_LINES :]) + line, "0644")
        return
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "entry": {"type": "dict", "default": {}},
            "folder": {"type": "path", "default": ""},
            "deployment": {"type": "str", "default": ""},
            "last": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    params = module.params
    name = params["deployment"]
    if params["entry"]:
        record = record_of(params["folder"])
        if not module.check_mode:
            append(module, os.path.join(HISTORY, f"{name}.jsonl"), params["entry"], record)
        module.exit_json(changed=True, entries=[])
    paths = sorted(glob.glob(os.path.join(HISTORY, f"{glob.escape(name) or '*'}.jsonl")))
    entries = [entry for path in paths for entry in history_entries(path)[-params["last"] :]]
    module.exit_json(changed=False, entries=entries)


if __name__ == "__main__":
    main()
