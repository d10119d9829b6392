#!/usr/bin/python
"""Take things of the toolkit away from a box, in the order given, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_remove
short_description: Take units, containers, images, files and rules of the firewall away
description:
  - Does what C(lifecycle.prune) or C(lifecycle.remove) has decided, in its order. What is gone already is no error,
    so a run that was cut off is finished by the next. It ends with the first thing that does not go.
author: vllm-spark
options:
  items:
    description: What to take away.
    type: list
    elements: dict
    required: true
    suboptions:
      kind:
        description: What it is. C(empty) is a folder that goes if nothing is in it; C(reload) has systemd look anew.
        type: str
        required: true
        choices: [unit, container, image, volume, path, rules, empty, reload]
      name: {type: str, required: true, description: 'Its name, path or ID; of C(rules) the program.'}
      names: {type: list, elements: str, default: [], description: Of an image, its names.}
      why: {type: str, default: "", description: For people.}
      bytes: {type: int, default: 0, description: For people.}
attributes:
  check_mode:
    support: full
    description: It says what would go.
"""

EXAMPLES = r"""
- name: Take it away
  vllm_remove:
    items: [{kind: path, name: /var/lib/vllm-spark/build/old-0123456789ab}]
"""

RETURN = r"""
removed:
  description: What went, or in check mode would go.
  returned: always
  type: list
  elements: str
"""

import os
import re
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule

# A unit may take 45 s to stop, and Docker some seconds for each gigabyte that it removes.
TIMEOUT_S = 600
CHAIN = "VLLM-SPARK"
# The launch makes one; whoever has added more by hand has not added many.
MOST_JUMPS = 20
GONE = re.compile(r"No such (image|container|volume)|removal of .* is already in progress", re.IGNORECASE)
NOT_LOADED = 5  # of systemctl
QUIET = ("empty", "reload")
# A path of fewer parts is nobody's to remove in one piece.
FEWEST_PARTS = 2


class RemovalError(Exception):
    """Something that was to go did not."""


def run(*words, fine=(0,)):
    """A command's output. Raises RemovalError for a status that is not fine."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RemovalError(f"{' '.join(words)}: {error}") from error
    said = (done.stderr.strip() or done.stdout.strip())[-500:]
    if done.returncode not in fine and not GONE.search(said):
        raise RemovalError(f"{' '.join(words)} ended with {done.returncode}: {said}")
    return done.returncode


def unit(item):
    run("systemctl", "stop", item["name"], fine=(0, NOT_LOADED))


def container(item):
    run("docker", "rm", "--force", item["name"])


def image(item):
    """By its names, one after the other: by its ID Docker refuses one that has several. None is forced, so one that a
    container is made of stays, and this says so."""
    for name in item["names"]:
        run("docker", "image", "rm", name)
    run("docker", "image", "rm", item["name"])


def volume(item):
    run("docker", "volume", "rm", item["name"])


def path(item):
    """A link goes, and not what it leads to."""
    name = item["name"]
    if os.path.normpath(name) != name or not os.path.isabs(name) or len(name.strip("/").split("/")) < FEWEST_PARTS:
        raise RemovalError(f"{name} is no path that vllm-spark removes")
    if mounted := [point for point in mount_points() if f"{point}/".startswith(f"{name}/")]:
        raise RemovalError(f"a file system is mounted at {mounted[0]}")
    if os.path.isdir(name) and not os.path.islink(name):
        shutil.rmtree(name)
    elif os.path.lexists(name):
        os.unlink(name)


def mount_points():
    """The kernel's own list: os.path.ismount takes every file of an overlay for one. Octal escapes stand for spaces."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [line.split()[4].replace("\\040", " ") for line in file]


def rules(item):
    """The jumps to the chain, then the chain. What is not there is fine: a status of 1."""
    program = item["name"]
    for _ in range(MOST_JUMPS):
        if run(program, "--wait", "--delete", "INPUT", "--jump", CHAIN, fine=(0, 1, 2)):
            break
    run(program, "--wait", "--flush", CHAIN, fine=(0, 1))
    run(program, "--wait", "--delete-chain", CHAIN, fine=(0, 1))


def empty(item):
    try:
        os.rmdir(item["name"])
    except OSError:
        return  # something is in it, it is a disk of its own, or it is gone


def reload(_item):
    run("systemctl", "daemon-reload")
    # Status 1: there is none that has failed.
    run("systemctl", "reset-failed", "vllm@*.service", "vllm-liveness@*", fine=(0, 1))


WAYS = {
    "unit": unit,
    "container": container,
    "image": image,
    "volume": volume,
    "path": path,
    "rules": rules,
    "empty": empty,
    "reload": reload,
}


def main():
    options = {
        "kind": {"type": "str", "required": True, "choices": sorted(WAYS)},
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
    told = [f"{item['kind']} {item['name']}" for item in items if item["kind"] not in QUIET]
    done = []
    for item in [] if module.check_mode else items:
        try:
            WAYS[item["kind"]](item)
        except (OSError, RemovalError) as error:
            module.fail_json(
                msg=f"{item['kind']} {item['name']} did not go: {error} — expected: nothing to hold it. Fix: see what "
                "does, then run the same again: it goes on from here. See docs/runbooks/remove-refused.md",
                changed=bool(done),
                removed=done,
            )
        if item["kind"] not in QUIET:
            done.append(f"{item['kind']} {item['name']}")
    module.exit_json(changed=bool(told), removed=told)


if __name__ == "__main__":
    main()
