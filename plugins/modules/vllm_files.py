#!/usr/bin/python
"""Place all files of a deployment in one round trip: compared, checked, replaced atomically."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_files
short_description: Place the files of a deployment in one round trip
description:
  - Creates folders, compares every file with the one on the host, checks the syntax of scripts with a shell, and
    replaces the files that differ atomically, those of a launch as one. If a shell refuses a file, nothing is changed.
author: vllm-spark
options:
  folders:
    description: Folders that must exist, parents before children.
    type: list
    elements: path
    default: []
  files:
    description: Files that must exist.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {type: path, required: true, description: Path on the host.}
      content: {type: str, required: true, description: The whole content.}
      mode: {type: str, default: "0644", description: The mode as four octal digits.}
      syntax: {type: str, default: "", description: A shell that must accept the content (C(sh -n)).}
  env_path:
    description: The env file, which only root may read.
    type: path
  env_content:
    description: The content of O(env_path). Never shown, not even in a diff.
    type: str
    default: ""
  link_path:
    description: Another file that only root may read - the key of a pair's link, or the settings of vllm-notify.
    type: path
    default: ""
  link_key:
    description: The new content of O(link_path). Empty leaves the file as it is. Never shown, not even in a diff.
    type: str
    default: ""
  group:
    description: A group of the system that must exist. Empty for none.
    type: str
    default: ""
  keep_as:
    description: The name under which the launch that is replaced stays. C(failed) is for one that never passed its
      gates. Empty if the launch does not change.
    type: str
    choices: ["", previous, failed]
    default: ""
  unedit:
    description: Whether the launch that stays as C(previous) is put back as it was deployed, because an edit by hand
      never ran. An edit whose original is unknown stays.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: The module predicts every change.
  diff_mode:
    support: full
    description: The diff has every file except the env file, the key and the toolkit's own programs.
"""

EXAMPLES = r"""
- name: Place the files
  vllm_files:
    folders: [/etc/vllm-spark/demo]
    files: [{path: /etc/vllm-spark/demo/launch, content: "#!/bin/sh\n", mode: "0755", syntax: sh}]
"""

RETURN = r"""
changed_paths:
  description: The paths that were, or in check mode would be, written, and C(group NAME) if it was created.
  returned: always
  type: list
  elements: str
"""

import grp
import os
from collections.abc import Collection
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_files import DEPLOYMENT_FILES, adopt, install
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_host_layout import FAILED, PREVIOUS
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import mode_of, run, text_diff, write_file


def current(path: str) -> tuple[str, str] | None:
    """Return content and mode of a file, or None."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(), mode_of(path)
    except FileNotFoundError:
        return None


def syntax_error(file: dict[str, Any]) -> str:
    """Return the error of the named shell about a script, or an empty text."""
    if not file["syntax"]:
        return ""
    result = run(file["syntax"], "-n", stdin=file["content"], timeout_s=None)
    return result.stderr.strip() if result.status else ""


def diff_of(file: dict[str, Any], secret_paths: Collection[str | None]) -> dict[str, str]:
    """Return the diff of one file; for the env file, the key and the toolkit's programs only that they change.

    The toolkit's programs are the executables that no shell checks, and their modules. Their source would hide the
    launch in a diff.
    """
    before = current(file["path"])
    change = f"{file['path']}: {'changes' if before else 'is new'}"
    if file["path"] in secret_paths:
        return {"prepared": f"{change} (its content is secret)\n"}
    if (file["mode"] == "0755" and not file["syntax"]) or file["path"].endswith(".py"):
        return {"prepared": f"{change} (a program of the toolkit, {file['content'].count(chr(10))} lines)\n"}
    if before and before[0] == file["content"]:
        return {"prepared": f"{file['path']}: its mode {before[1]} becomes {file['mode']}\n"}
    return text_diff(file["path"], before and before[0], file["content"])


def group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def main() -> None:
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
            "link_path": {"type": "path", "default": ""},
            "link_key": {"type": "str", "default": "", "no_log": True},
            "group": {"type": "str", "default": ""},
            "keep_as": {"type": "str", "choices": ["", PREVIOUS, FAILED], "default": ""},
            "unedit": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    env_path: str | None = params["env_path"]
    for file in params["files"]:
        if error := syntax_error(file):
            module.fail_json(
                msg=f"{file['path']}: {file['syntax']} refuses the new content: {error}. Nothing was changed."
            )

    files = list(params["files"])
    if env_path:
        files.append({"path": env_path, "content": params["env_content"], "mode": "0600"})
    if params["link_key"]:
        files.append({"path": params["link_path"], "content": f"{params['link_key']}\n", "mode": "0600"})
    missing = [folder for folder in params["folders"] if not os.path.isdir(folder)]
    stale = [file for file in files if current(file["path"]) != (file["content"], file["mode"])]
    group = params["group"] if params["group"] and not group_exists(params["group"]) else ""
    diff = [{"prepared": f"group {group}: is new\n"}] if group else []
    diff += [{"prepared": f"{folder}: a folder that is new\n"} for folder in missing]
    diff += [diff_of(file, (env_path, params["link_path"])) for file in stale]
    changed = ([f"group {group}"] if group else []) + missing + [file["path"] for file in stale]
    if changed and not module.check_mode:
        # A launch of a closed engine needs the group, so it comes first.
        if group and (created := run("groupadd", "--system", group, timeout_s=None)).status:
            module.fail_json(msg=f"groupadd {group}: {created.error}. Nothing was changed.")
        for folder in missing:
            os.makedirs(folder, mode=0o755, exist_ok=True)
        folder = os.path.dirname(env_path or "")
        paths = [os.path.join(folder, name) for name in DEPLOYMENT_FILES] if env_path else []
        for file in stale:
            if file["path"] not in paths:
                write_file(file["path"], file["content"], file["mode"])
        # The files of the launch come last, and as one.
        if launch := [file for file in stale if file["path"] in paths]:
            install(folder, launch, params["keep_as"], unedit=params["unedit"])
        elif env_path:
            adopt(folder)
    module.exit_json(changed=bool(changed), changed_paths=changed, diff=diff)


if __name__ == "__main__":
    main()
