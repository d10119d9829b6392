#!/usr/bin/python
"""What ran when on a box: one line of JSON a launch that has been judged, by deployment."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_history
short_description: Write down that a launch has been judged, or read what ran when
description:
  - With O(entry) it appends a line to the history of O(deployment), made of the entry and of the record that lies in
    O(folder). A history is bounded; its oldest lines go first. Without, it reads.
author: vllm-spark
options:
  entry:
    description: What the run knows of the launch.
    type: dict
    default: {}
  folder:
    description: The folder of the deployment, whose deployed.json says what the launch is.
    type: path
    default: ""
  deployment:
    description: The deployment; empty to read those of all.
    type: str
    default: ""
  last:
    description: How many entries of each deployment to return.
    type: int
    default: 20
  history:
    description: Where histories lie.
    type: path
    default: /var/lib/vllm-spark/history
attributes:
  check_mode:
    support: full
    description: It writes nothing.
"""

EXAMPLES = r"""
- name: Read
  vllm_history:
    deployment: demo
"""

RETURN = r"""
entries:
  description: The last entries, the oldest first.
  returned: always
  type: list
  elements: dict
"""

import glob
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_files import document, place
from ansible.module_utils.spark_holdings import json_line

# A line is below 2 KB, and a busy week has some fifty launches.
MOST = 500
# Of deployed.json, what tells a launch from another; what ran before has its own line.
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


def lines(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def write_down(module, path, entry, record):
    """Append in one write; a line that a loss of power has cut is ended first, so that it costs itself alone."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    whole = {"time": when, **{key: record[key] for key in RECORD if key in record}, **entry}
    line = module.jsonify(whole) + "\n"
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    known = lines(path)
    if len(known) >= MOST:
        place(path, "".join(f"{old}\n" for old in known[1 - MOST :]) + line, "0644")
        return
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else f"\n{line}"
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def main():
    module = AnsibleModule(
        argument_spec={
            "entry": {"type": "dict", "default": {}},
            "folder": {"type": "path", "default": ""},
            "deployment": {"type": "str", "default": ""},
            "last": {"type": "int", "default": 20},
            "history": {"type": "path", "default": "/var/lib/vllm-spark/history"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    name = asked["deployment"]
    if asked["entry"]:
        record = document(os.path.join(asked["folder"], "deployed.json"))
        if not module.check_mode:
            write_down(module, os.path.join(asked["history"], f"{name}.jsonl"), asked["entry"], record)
        module.exit_json(changed=True, entries=[])
    found = sorted(glob.glob(os.path.join(asked["history"], f"{glob.escape(name) or '*'}.jsonl")))
    entries = [entry for path in found for entry in list(filter(None, map(json_line, lines(path))))[-asked["last"] :]]
    module.exit_json(changed=False, entries=entries)


if __name__ == "__main__":
    main()
