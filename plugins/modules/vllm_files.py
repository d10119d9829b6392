#!/usr/bin/python
"""All files of a deployment in one round trip: compared, checked, placed atomically."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_files
short_description: Place the files of a deployment in one round trip
description:
  - Creates folders, compares every file with what lies on the box, lets a shell check scripts, and replaces what
    differs atomically. A file that a shell refuses leaves everything as it was.
author: vllm-spark
options:
  folders:
    description: Folders to have, parents before children.
    type: list
    elements: path
    default: []
  files:
    description: Files to have.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {type: path, required: true, description: Where it lies.}
      content: {type: str, required: true, description: What it holds.}
      mode: {type: str, default: "0644", description: Its mode.}
      syntax: {type: str, default: "", description: A shell that must accept it (C(sh -n)).}
  env_path:
    description: The env file, which only root may read.
    type: path
  env_content:
    description: Its content. Never shown, not in a diff either.
    type: str
    default: ""
  keep_previous:
    description: Copy the current files of the deployment to C(previous/) before the first of them is replaced.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: It predicts every change.
  diff_mode:
    support: full
    description: It shows every file but the env file.
"""

EXAMPLES = r"""
- name: Place the files
  vllm_files:
    folders: [/etc/vllm-spark/demo]
    files: [{path: /etc/vllm-spark/demo/launch, content: "#!/bin/sh\n", mode: "0755", syntax: sh}]
"""

RETURN = r"""
changed_paths:
  description: What was, or in check mode would be, written.
  returned: always
  type: list
  elements: str
"""

import os
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_files import PREVIOUS, keep, mend, place


def current(path):
    """Content and mode of a file, or None."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(), f"{os.stat(path).st_mode & 0o7777:04o}"
    except FileNotFoundError:
        return None


def syntax_error(file):
    """What the named shell says against a script, or nothing."""
    if not file["syntax"]:
        return ""
    checked = subprocess.run([file["syntax"], "-n"], input=file["content"], capture_output=True, text=True, check=False)
    return checked.stderr.strip() if checked.returncode else ""


def main():
    file_options = {
        "path": {"type": "path", "required": True},
        "content": {"type": "str", "required": True},
        "mode": {"type": "str", "default": "0644"},
        "syntax": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "folders": {"type": "list", "elements": "path", "default": []},
            "files": {"type": "list", "elements": "dict", "default": [], "options": file_options},
            "env_path": {"type": "path"},
            "env_content": {"type": "str", "default": "", "no_log": True},
            "keep_previous": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    for file in wanted["files"]:
        if error := syntax_error(file):
            module.fail_json(
                msg=f"{file['path']}: {file['syntax']} refuses the new content: {error}. Nothing was changed."
            )

    files = list(wanted["files"])
    if wanted["env_path"]:
        files.append({"path": wanted["env_path"], "content": wanted["env_content"], "mode": "0600"})
    missing = [folder for folder in wanted["folders"] if not os.path.isdir(folder)]
    stale = [file for file in files if current(file["path"]) != (file["content"], file["mode"])]
    diff = [shown(file, wanted["env_path"]) for file in stale]
    changed = missing + [file["path"] for file in stale]
    if changed and not module.check_mode:
        for folder in missing:
            os.makedirs(folder, mode=0o755, exist_ok=True)
        if wanted["env_path"]:
            mend(os.path.dirname(wanted["env_path"]))
        if wanted["keep_previous"] and wanted["env_path"]:
            keep(os.path.dirname(wanted["env_path"]), PREVIOUS)
        for file in stale:
            place(file["path"], file["content"], file["mode"])
    module.exit_json(changed=bool(changed), changed_paths=changed, diff=diff)


def shown(file, secret_path):
    """The diff of one file; of the env file only that it changes."""
    before = current(file["path"])
    if file["path"] == secret_path:
        return {"prepared": f"{file['path']}: {'changes' if before else 'is new'} (its content is secret)\n"}
    return {
        "before_header": file["path"],
        "after_header": file["path"],
        "before": before[0] if before else "",
        "after": file["content"],
    }


if __name__ == "__main__":
    main()
