#!/usr/bin/python
"""Read the netplan configuration of a host, change it under a guard, confirm the change, or take it back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_netplan
short_description: Place one netplan file under a guard, and restore the state before
description:
  - A change is one round trip, because the connection to the host may not survive its first half. Before the change,
    the current state is saved in a snapshot, and a transient systemd timer is started that ends the trial.
  - The change is a trial in /run/netplan. A host that loses its power boots with its old configuration.
  - O(state=kept), sent over a new connection, writes the change to /etc/netplan. Without it the timer ends the trial.
  - The state before the first confirmed change stays in C(before/) of the journal until O(state=absent).
author: vllm-spark
options:
  state:
    description:
      - C(look) reads. C(present) places the file and applies it. C(kept) confirms. C(absent) takes everything back.
    choices: [look, present, kept, absent]
    required: true
    type: str
  path:
    description: The netplan file to place. Required if O(state=present).
    type: path
  content:
    description: The content of O(path). The file gets mode 0600 and the owner root. Required if O(state=present).
    type: str
    default: ""
  move:
    description: Other netplan files to move into the journal.
    type: list
    elements: path
    default: []
  addresses:
    description: The desired address with prefix of each netdev.
    type: dict
    default: {}
  mtu:
    description: The desired MTU of these netdevs.
    type: int
    default: 0
  restore:
    description:
      - The script that restores a snapshot, for the timer, for O(state=absent) and for an operator. Required if
        O(state=present).
    type: str
    default: ""
  guard_s:
    description: Seconds until the timer restores the snapshot.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: The module predicts every change.
  diff_mode:
    support: full
    description: The diff has the placed file. It only names moved and restored files, because they may contain secrets.
"""

EXAMPLES = r"""
- name: Read the netplan configuration
  spark_netplan:
    state: look
"""

RETURN = r"""
files:
  description: With C(look), each netplan file with the netdevs that it configures and its other sections.
  returned: state is look
  type: list
  elements: dict
netplan:
  description: With C(look), the path of netplan; empty if it is not installed.
  returned: state is look
  type: str
reached_by:
  description: With C(look), the netdev that carries this connection.
  returned: state is look
  type: str
netdevs:
  description: With C(present), the current settings of the netdevs.
  returned: state is present
  type: dict
confirm:
  description: With C(absent), true if O(state=kept) must confirm the change.
  returned: state is absent
  type: bool
left_alone:
  description: With C(absent), netplan files that another program or person has changed, and that were not restored.
  returned: state is absent
  type: list
  elements: str
"""

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    CommandError,
    CommandResult,
    read_text,
    run,
    text_diff,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_journal import (
    APPLY_TIMEOUT_S,
    BEFORE,
    ETC,
    GUARD,
    JOURNAL,
    LAST,
    PENDING,
    add_files,
    add_lines,
    addresses_of,
    arm_guard,
    end_trial,
    forget,
    keep_files,
    known_netdevs,
    lines_of,
    restore,
    snapshot,
    stop_guard,
    touched,
    tree,
    trial,
    try_files,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_netplan import ip_json, read_netplan

# Time for the netdevs to have the applied settings: networkd and NetworkManager continue after `netplan apply` ends,
# and a ConnectX-7 takes its link down for a new MTU.
SETTLE_TIMEOUT_S = 20
POLL_INTERVAL_S = 0.2
# Content, mode, user and group of a file.
Fingerprint = tuple[bytes, int, int, int]


def present(module: AnsibleModule, params: Mapping[str, Any]) -> NoReturn:
    path, content, addresses = params["path"], params["content"], params["addresses"]
    netdevs = settings(addresses)
    # A netdev without a cable gets no address, so it needs no change.
    live = not any(netdevs[name]["carrier"] for name in behind(netdevs, addresses, params["mtu"]))
    stale = fingerprint(path) != (content.encode(), 0o600, 0, 0)
    moved = [other for other in params["move"] if os.path.exists(other)]
    changed = bool(stale or moved or not live)
    diff = [{"prepared": f"{other}: moves into the journal {JOURNAL}\n"} for other in moved]
    if stale:
        diff.append(text_diff(path, read_text(path), content))
    elif changed:
        diff.append({"prepared": f"{path}: is right, and is applied again\n"})
    if changed and not module.check_mode:
        snapshot([path, *moved], addresses, params["restore"])
        arm_guard(params["guard_s"])
        try_files({os.path.basename(path): content, **{os.path.basename(other): None for other in moved}})
        result = run("netplan", "apply", timeout_s=APPLY_TIMEOUT_S)
        if result.status:
            undone = end_trial()
            module.fail_json(
                msg=f"netplan apply ended with {result.status}: {one_line(result.error)} — expected: exit status 0. "
                "The old files are applied again"
                f"{', and netplan refuses them too, so the fault is in them' if undone.status else ''}. Fix: sudo "
                "netplan --debug generate. It shows the line, on the host. See docs/runbooks/fabric-netplan.md"
            )
        netdevs = wait_for_settings(addresses, params["mtu"])
    module.exit_json(changed=changed, diff=diff, netdevs=netdevs)


def one_line(error: str) -> str:
    """Return netplan's error in one line, without its warnings about the modes of other files."""
    lines = (line.strip() for line in error.splitlines())
    return " ".join(line for line in lines if line.strip("^ ") and "WARNING" not in line)


def fingerprint(path: str) -> Fingerprint | None:
    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            return file.read(), stat.st_mode & 0o7777, stat.st_uid, stat.st_gid
    except FileNotFoundError:
        return None


def settings(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return addresses, MTU and carrier of the named netdevs."""
    known = set(names)
    return {
        link["ifname"]: {
            "addresses": addresses_of(link),
            "mtu": link["mtu"],
            "carrier": "LOWER_UP" in link["flags"],
        }
        for link in ip_json("addr")
        if link["ifname"] in known
    }


def behind(netdevs: Mapping[str, Mapping[str, Any]], addresses: Mapping[str, str], mtu: int) -> list[str]:
    """Return the netdevs that do not have their address or the MTU."""
    return [
        name
        for name, address in addresses.items()
        if name in netdevs and (address not in netdevs[name]["addresses"] or netdevs[name]["mtu"] != mtu)
    ]


def wait_for_settings(addresses: Mapping[str, str], mtu: int) -> dict[str, dict[str, Any]]:
    """Wait until the netdevs have the applied settings or SETTLE_TIMEOUT_S have passed. Returns their settings; the
    ping that follows judges them."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while behind(netdevs := settings(addresses), addresses, mtu) and time.monotonic() <= deadline:
        time.sleep(POLL_INTERVAL_S)
    return netdevs


def kept(module: AnsibleModule) -> NoReturn:
    """Confirm the change. The first to move the snapshot away decides, this module or the guard: one rename, so never
    both."""
    shutil.rmtree(LAST, ignore_errors=True)
    files = trial()
    try:
        os.rename(PENDING, LAST)
    except FileNotFoundError:
        module.fail_json(
            msg="the guard has restored the old netplan files already — expected: a confirmation before its time was "
            f"over. Fix: run it again, with a larger spark_fabric_guard_s; `sudo journalctl -u {GUARD}` has its "
            "messages. See docs/runbooks/fabric-way-lost.md"
        )
    stop_guard()
    if os.path.exists(os.path.join(LAST, "forget")):
        put_back(module)
        module.exit_json(changed=True)
    if not os.path.isdir(BEFORE):
        run("cp", "--archive", LAST, BEFORE)
    else:
        add_files(BEFORE, {name: os.path.join(LAST, "files", name) for name in touched(LAST)})
        known = known_netdevs(BEFORE)
        lines = lines_of(os.path.join(LAST, "links"))
        add_lines(os.path.join(BEFORE, "links"), [line for line in lines if line.split()[0] not in known])
    keep_files(files)
    module.exit_json(changed=True)


def put_back(module: AnsibleModule) -> None:
    """Put the old files back after their trial, and remove the journal. Ends the module if a file differs."""
    require_success(module, restore("keep"))
    names = touched(BEFORE)
    wrong = [n for n in names if fingerprint(os.path.join(ETC, n)) != fingerprint(os.path.join(BEFORE, "files", n))]
    if wrong:
        module.fail_json(msg=f"not restored: {', '.join(wrong)}; {BEFORE}/files has them")
    shutil.rmtree(JOURNAL)
    if not os.listdir(os.path.dirname(JOURNAL)):
        os.rmdir(os.path.dirname(JOURNAL))


def absent(module: AnsibleModule, guard_s: int) -> NoReturn:
    if not os.path.isdir(BEFORE):
        unconfirmed = os.path.isdir(PENDING)
        if unconfirmed and not module.check_mode:
            require_success(module, end_trial())
            shutil.rmtree(JOURNAL)
        module.exit_json(changed=unconfirmed, confirm=False, left_alone=[])
    names = touched(BEFORE)
    tree_before = {name: value for value, name in (line.split("  ", 1) for line in lines_of(f"{BEFORE}/tree"))}
    tree_now = tree()
    left_alone = sorted(
        name
        for name in tree_before.keys() | tree_now.keys()
        if name not in names and tree_before.get(name) != tree_now.get(name)
    )
    diff = [{"prepared": f"{os.path.join(ETC, name)}: {outcome(name)}\n"} for name in names]
    if not module.check_mode:
        snapshot(names, dict.fromkeys(known_netdevs(BEFORE), ""), "")
        forget(True)
        arm_guard(guard_s)
        try_files({name: read_text(os.path.join(BEFORE, "files", name)) for name in names})
        require_success(module, restore("try"))
    module.exit_json(changed=True, confirm=True, diff=diff, left_alone=left_alone)


def outcome(name: str) -> str:
    return "comes back as it was" if os.path.exists(os.path.join(BEFORE, "files", name)) else "is removed"


def require_success(module: AnsibleModule, restored: CommandResult) -> None:
    if restored.status:
        module.fail_json(
            msg=f"{JOURNAL}/restore ended with {restored.status}: {one_line(restored.error)} — expected: exit status "
            f"0. Fix: on the host `sudo netplan --debug generate`, then `sudo {JOURNAL}/restore before`. See "
            "docs/runbooks/fabric-netplan.md"
        )


def main() -> None:
    spec = {
        "state": {"type": "str", "choices": ["look", "present", "kept", "absent"], "required": True},
        "path": {"type": "path"},
        "content": {"type": "str", "default": ""},
        "move": {"type": "list", "elements": "path", "default": []},
        "addresses": {"type": "dict", "default": {}},
        "mtu": {"type": "int", "default": 0},
        "restore": {"type": "str", "default": ""},
        "guard_s": {"type": "int", "default": 60},
    }
    module = AnsibleModule(
        argument_spec=spec, supports_check_mode=True, required_if=[("state", "present", ["path", "content", "restore"])]
    )
    try:
        act(module, module.params)
    except CommandError as error:
        module.fail_json(
            msg=f"{one_line(str(error))} — expected: exit status 0. A trial that began ends by its guard. Fix: run the "
            "command on the host. See docs/runbooks/fabric-netplan.md"
        )


def act(module: AnsibleModule, params: Mapping[str, Any]) -> NoReturn:
    if params["state"] == "look":
        # The guard's timer may still run: a trial is not part of the configuration.
        module.exit_json(changed=False, **read_netplan(set(trial())))
    elif params["state"] == "present":
        present(module, params)
    elif params["state"] == "kept":
        kept(module)
    else:
        absent(module, params["guard_s"])


if __name__ == "__main__":
    main()
