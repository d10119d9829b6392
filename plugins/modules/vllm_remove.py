#!/usr/bin/python
"""Remove objects of the toolkit from a host, in the given order, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_remove
short_description: Remove units, containers, images and files
description:
  - Executes the decision of C(lifecycle.prune) or C(lifecycle.remove), in its order. An object that is gone already is
    not an error, so the next run completes an interrupted one. The module fails at the first object that stays.
author: vllm-spark
options:
  items:
    description: The objects to remove.
    type: list
    elements: dict
    required: true
    suboptions:
      kind:
        description:
          - The kind of the object. C(account) is a system user with its group. C(empty) is a folder that is removed if
            it is empty. C(reload) is a daemon-reload of systemd. C(shared) is a file of a hub cache's shared store.
            C(trace) is a path that the stop of a unit writes, so it may be absent.
        type: str
        required: true
        choices: [account, container, empty, image, path, reload, shared, trace, unit]
      name: {type: str, required: true, description: 'Its name, path or ID.'}
      names: {type: list, elements: str, default: [], description: The names of an image.}
      why: {type: str, default: "", description: The reason, for the operator.}
      bytes: {type: int, default: 0, description: The size in bytes, for the operator.}
attributes:
  check_mode:
    support: full
    description: The module returns what would be removed.
"""

EXAMPLES = r"""
- name: Remove an old build folder
  vllm_remove:
    items: [{kind: path, name: /var/lib/vllm-spark/build/old-0123456789ab}]
"""

RETURN = r"""
removed:
  description: The objects that were, or in check mode would be, removed.
  returned: always
  type: list
  elements: str
"""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import run
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_shared_blobs import remove

# A unit may take 45 s to stop, and Docker some seconds for each gigabyte that it removes.
TIMEOUT_S = 600.0
GONE = re.compile(r"No such (image|container)|removal of .* is already in progress", re.IGNORECASE)
NOT_LOADED = 5  # exit status of systemctl
QUIET = ("empty", "reload", "trace")
# A path of fewer parts is never removed as a whole.
MIN_PARTS = 2

Item = dict[str, Any]


class RemovalError(Exception):
    """An object could not be removed."""


def execute(*argv: str, accepted: tuple[int, ...] = (0,)) -> int:
    """Run a command and return its exit status. Raises RemovalError for a status that is not accepted, unless the
    object is gone."""
    result = run(*argv, timeout_s=TIMEOUT_S)
    error = result.error[-500:]
    if result.status not in accepted and not GONE.search(error):
        raise RemovalError(f"{' '.join(argv)} ended with {result.status}: {error}")
    return result.status


def unit(item: Item) -> None:
    execute("systemctl", "stop", item["name"], accepted=(0, NOT_LOADED))


def container(item: Item) -> None:
    execute("docker", "rm", "--force", item["name"])


def image(item: Item) -> None:
    """Remove an image by its names, one after the other: Docker refuses the ID of an image with several names. Without
    --force, an image that a container uses stays, and RemovalError reports it."""
    for name in item["names"]:
        execute("docker", "image", "rm", name)
    execute("docker", "image", "rm", item["name"])


def path(item: Item) -> None:
    """Remove a file, a folder, or a link without its target. Raises RemovalError for a path that is not absolute and
    normalised, is too short, or contains a mount point."""
    name = item["name"]
    if os.path.normpath(name) != name or not os.path.isabs(name) or len(name.strip("/").split("/")) < MIN_PARTS:
        raise RemovalError(f"{name} is not a path that vllm-spark removes")
    if mounted := [point for point in mount_points() if f"{point}/".startswith(f"{name}/")]:
        raise RemovalError(f"a file system is mounted at {mounted[0]}")
    if os.path.isdir(name) and not os.path.islink(name):
        shutil.rmtree(name)
    elif os.path.lexists(name):
        os.unlink(name)


def shared(item: Item) -> None:
    """Remove a file of a shared store. Raises RemovalError if it came into use since it was listed."""
    if why := remove(Path(item["name"])):
        raise RemovalError(why)


def mount_points() -> list[str]:
    """Return the mount points from the kernel's own list: os.path.ismount returns True for every file of an overlay.
    Spaces are escaped in octal there."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [line.split()[4].replace("\\040", " ") for line in file]


def empty(item: Item) -> None:
    try:
        os.rmdir(item["name"])
    except OSError:
        return  # the folder is not empty, is a mount point, or is gone


def reload(_item: Item) -> None:
    execute("systemctl", "daemon-reload")
    # Exit status 1 means that none of the units has failed.
    execute("systemctl", "reset-failed", "vllm@*.service", "vllm-liveness@*", "vllm-gave-up@*", accepted=(0, 1))


def account(item: Item) -> None:
    """Remove a system user and its group. Status 6: there is none."""
    execute("userdel", item["name"], accepted=(0, 6))
    execute("groupdel", item["name"], accepted=(0, 6))


REMOVERS: dict[str, Callable[[Item], None]] = {
    "unit": unit,
    "container": container,
    "image": image,
    "path": path,
    "trace": path,
    "shared": shared,
    "empty": empty,
    "reload": reload,
    "account": account,
}


def main() -> None:
    options = {
        "kind": {"type": "str", "required": True, "choices": sorted(REMOVERS)},
        "name": {"type": "str", "required": True},
        "names": {"type": "list", "elements": "str", "default": []},
        "why": {"type": "str", "default": ""},
        "bytes": {"type": "int", "default": 0},
    }
    module = AnsibleModule(
        argument_spec={"items": {"type": "list", "elements": "dict", "required": True, "options": options}},
        supports_check_mode=True,
    )
    items = module.params["items"]
    planned = [f"{item['kind']} {item['name']}" for item in items if item["kind"] not in QUIET]
    removed: list[str] = []
    for item in [] if module.check_mode else items:
        try:
            REMOVERS[item["kind"]](item)
        except (OSError, RemovalError) as error:
            module.fail_json(
                msg=f"{item['kind']} {item['name']} was not removed: {error} — expected: an object that nothing uses. "
                "Fix: end what uses it, then run the same command again: it continues from there. See "
                "docs/runbooks/remove-refused.md",
                changed=bool(removed),
                removed=removed,
            )
        if item["kind"] not in QUIET:
            removed.append(f"{item['kind']} {item['name']}")
    module.exit_json(changed=bool(planned), removed=planned)


if __name__ == "__main__":
    main()
