#!/usr/bin/python
"""The netplan of a box: look at it, change it under a guard, keep the change, take it back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: spark_netplan
short_description: Place one netplan file under a guard, and put everything back as it was
description:
  - A change is one round trip, because the way to the box may not outlive its first half. Before anything changes, what
    is there goes into a snapshot, and a transient systemd timer is started that puts the snapshot back.
  - O(state=kept), sent over a new connection, takes the snapshot from under the timer. Without it the timer acts.
  - What was there before the first change that was kept stays in C(before/) of the journal until O(state=absent).
author: vllm-spark
options:
  state:
    description: C(look) reads; C(present) places the file and applies; C(kept) confirms; C(absent) takes it all back.
    choices: [look, present, kept, absent]
    required: true
    type: str
  path:
    description: The netplan file to place.
    type: path
  content:
    description: What it holds. Mode 0600, of root.
    type: str
    default: ""
  move:
    description: Other netplan files to move into the journal.
    type: list
    elements: path
    default: []
  addresses:
    description: The address with prefix that each netdev is to have.
    type: dict
    default: {}
  mtu:
    description: The MTU that they are to have.
    type: int
    default: 0
  live:
    description: The netdevs are known to have all this, so nothing has to be applied if no file changes.
    type: bool
    default: true
  restore:
    description: The script that puts a snapshot back, for the timer, for O(state=absent) and for a person.
    type: str
    default: ""
  guard_s:
    description: Seconds until the timer puts the snapshot back.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
    description: It predicts every change.
  diff_mode:
    support: full
    description: It shows the placed file. Of moved and restored files only the names, because they may hold secrets.
"""

EXAMPLES = r"""
- name: Look
  spark_netplan:
    state: look
"""

RETURN = r"""
files:
  description: With C(look), each netplan file with the netdevs that it configures and what else it says.
  returned: state is look
  type: list
  elements: dict
netplan:
  description: With C(look), the path of netplan, or nothing.
  returned: state is look
  type: str
reached_by:
  description: With C(look), the netdev that carries this connection.
  returned: state is look
  type: str
netdevs:
  description: With C(present), what the netdevs have now.
  returned: state is present
  type: dict
left_alone:
  description: With C(absent), netplan files that somebody else has changed since, and that were not touched.
  returned: state is absent
  type: list
  elements: str
"""

import hashlib
import os
import shutil
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.spark_netplan import ip_json, look, read

ETC = "/etc/netplan"
JOURNAL = "/var/lib/vllm-spark/fabric"
BEFORE, PENDING, LAST = (os.path.join(JOURNAL, name) for name in ("before", "pending", "last"))
GUARD = "vllm-spark-fabric-guard"
# How long netdevs may take to show what was applied: networkd and NetworkManager work on after `netplan apply` ends,
# and a ConnectX-7 takes its link down for a new MTU.
SETTLE_S = 20
# Less than the guard's time, so that the two never apply at once.
APPLY_S = 45


def run(*words, timeout=30):
    """(exit status, what it said)."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return 124, f"{words[0]} did not end within {timeout} s"
    return done.returncode, (done.stderr.strip() or done.stdout.strip())


# --- change


def present(module, asked):
    stale = fingerprint(asked["path"]) != wanted(asked["content"])
    moved = [path for path in asked["move"] if os.path.exists(path)]
    changed = bool(stale or moved or not asked["live"])
    diff = [{"prepared": f"{path}: moves into the journal {JOURNAL}\n"} for path in moved]
    if stale:
        diff.append(shown(asked))
    elif changed:
        diff.append({"prepared": f"{asked['path']}: is right, and is applied again\n"})
    if changed and not module.check_mode:
        snapshot([asked["path"], *moved], asked)
        arm(asked["guard_s"])
        place(asked["path"], asked["content"])
        for path in moved:
            os.unlink(path)
        status, said = run("netplan", "apply", timeout=APPLY_S)
        if status:
            older, _ = take_back("pending")
            module.fail_json(
                msg=f"netplan apply ended with {status}: {short(said)} — expected: 0. The old files are back"
                f"{', and netplan refuses them too, so the fault is theirs' if older else ''}. Fix: sudo netplan "
                "--debug generate on the box. See docs/runbooks/fabric-netplan.md"
            )
    netdevs = settled(asked) if changed and not module.check_mode else state(asked["addresses"])
    module.exit_json(changed=changed, diff=diff, netdevs=netdevs)


def short(said):
    """netplan's error in one line, without its warnings about the modes of other files."""
    lines = (line.strip() for line in said.splitlines())
    return " ".join(line for line in lines if line.strip("^ ") and "WARNING" not in line)


def fingerprint(path):
    """(content, mode, owner) of a file, or None."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            return file.read(), found.st_mode & 0o7777, found.st_uid, found.st_gid
    except FileNotFoundError:
        return None


def wanted(content):
    return content.encode(), 0o600, 0, 0


def place(path, content):
    """Replace the file in one step. netplan reads *.yaml only, so never the unfinished one."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.vllm-spark")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, 0o600)
    os.replace(temporary, path)


def shown(asked):
    before = fingerprint(asked["path"])
    return {
        "before_header": asked["path"],
        "after_header": asked["path"],
        "before": before[0].decode(errors="replace") if before else "",
        "after": asked["content"],
    }


def snapshot(paths, asked):
    """What is there now, in PENDING. One that a run before this left, unconfirmed, stays: that is the known state."""
    run("systemctl", "stop", f"{GUARD}.timer")
    os.makedirs(os.path.join(PENDING, "files"), mode=0o700, exist_ok=True)
    os.chmod(JOURNAL, 0o700)
    if asked["restore"]:
        script = os.path.join(JOURNAL, "restore")
        place(script, asked["restore"])
        os.chmod(script, 0o700)
    forget(False)
    add_files(PENDING, {name: os.path.join(ETC, name) for name in map(os.path.basename, paths)})
    add_lines(os.path.join(PENDING, "links"), link_lines(asked["addresses"]))
    if not os.path.exists(os.path.join(PENDING, "tree")):
        add_lines(os.path.join(PENDING, "tree"), [f"{value}  {name}" for name, value in sorted(tree().items())])
    os.sync()


def forget(journal):
    """Note in the snapshot whether the journal is to go with it."""
    mark = os.path.join(PENDING, "forget")
    if journal:
        add_lines(mark, [])
    elif os.path.exists(mark):
        os.unlink(mark)


def add_files(folder, sources):
    """Copy files with mode, owner and time; `touched` names also those that are not there."""
    known = read(os.path.join(folder, "touched")).splitlines()
    for name, source in sources.items():
        if name not in known:
            if os.path.exists(source):
                copy = os.path.join(folder, "files", name)
                shutil.copy2(source, copy)
                found = os.stat(source)
                os.chown(copy, found.st_uid, found.st_gid)
            add_lines(os.path.join(folder, "touched"), [name])


def add_lines(path, lines):
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def link_lines(addresses):
    """What netplan does not take back from a netdev by itself, as `restore` reads it."""
    links = {link["ifname"]: link for link in ip_json("addr")}
    known = {line.split()[0] for line in read(os.path.join(PENDING, "links")).splitlines()}
    lines = []
    for netdev, address in addresses.items():
        link = links.get(netdev)
        if link and netdev not in known:
            lines.append(f"{netdev} mtu {link['mtu']}")
            if address and address not in addresses_of(link):
                lines.append(f"{netdev} without {address}")
            if "UP" not in link["flags"]:
                lines.append(f"{netdev} down")
    return lines


def addresses_of(link):
    return [f"{entry['local']}/{entry['prefixlen']}" for entry in link["addr_info"] if entry["family"] == "inet"]


def tree():
    names = sorted(os.listdir(ETC)) if os.path.isdir(ETC) else []
    paths = {name: os.path.join(ETC, name) for name in names}
    return {name: hashlib.sha256(read(path, "rb")).hexdigest() for name, path in paths.items() if os.path.isfile(path)}


def arm(guard_s):
    """The timer lives in systemd and not in this connection, so it acts when nobody can reach the box any more."""
    run("systemctl", "reset-failed", f"{GUARD}.service")
    words = ["--quiet", "--collect", "--unit", GUARD, "--on-active", str(guard_s), "--timer-property=AccuracySec=1s"]
    status, said = run("systemd-run", *words, os.path.join(JOURNAL, "restore"), "pending")
    if status:
        raise RuntimeError(f"systemd-run ended with {status}: {said}; nothing was changed")


def take_back(which):
    result = run(os.path.join(JOURNAL, "restore"), which, timeout=APPLY_S)
    run("systemctl", "stop", f"{GUARD}.timer")
    return result


def state(names):
    """What the named netdevs have."""
    return {
        link["ifname"]: {
            "addresses": addresses_of(link),
            "mtu": link["mtu"],
            "carrier": "LOWER_UP" in link["flags"],
        }
        for link in ip_json("addr")
        if link["ifname"] in names
    }


def settled(asked):
    """Wait until the netdevs have what was applied, or have no cable, or SETTLE_S have passed; the ping judges."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        netdevs = state(asked["addresses"])
        behind = [
            name
            for name, address in asked["addresses"].items()
            if name in netdevs and (address not in netdevs[name]["addresses"] or netdevs[name]["mtu"] != asked["mtu"])
        ]
        if not behind or time.monotonic() > deadline:
            return netdevs
        time.sleep(0.2)


# --- keep and take back


def kept(module):
    """Whoever moves the snapshot away first decides: this, or the guard. It is one rename, so never both."""
    shutil.rmtree(LAST, ignore_errors=True)
    try:
        os.rename(PENDING, LAST)
    except FileNotFoundError:
        module.fail_json(
            msg="the guard has put the old netplan files back already — expected: a confirmation before its time was "
            f"over. Fix: run it again, with a larger spark_fabric_guard_s; sudo journalctl -u {GUARD} tells what it "
            "did. See docs/runbooks/fabric-way-lost.md"
        )
    run("systemctl", "stop", f"{GUARD}.timer")
    if os.path.exists(os.path.join(LAST, "forget")):
        shutil.rmtree(JOURNAL)
        if not os.listdir(os.path.dirname(JOURNAL)):
            os.rmdir(os.path.dirname(JOURNAL))
    elif not os.path.isdir(BEFORE):
        run("cp", "--archive", LAST, BEFORE)
    else:
        names = read(os.path.join(LAST, "touched")).splitlines()
        add_files(BEFORE, {name: os.path.join(LAST, "files", name) for name in names})
        known = {line.split()[0] for line in read(os.path.join(BEFORE, "links")).splitlines()}
        lines = read(os.path.join(LAST, "links")).splitlines()
        add_lines(os.path.join(BEFORE, "links"), [line for line in lines if line.split()[0] not in known])
    module.exit_json(changed=True)


def absent(module, asked):
    if not os.path.isdir(BEFORE):
        unconfirmed = os.path.isdir(PENDING)
        if unconfirmed and not module.check_mode:
            report(module, *take_back("pending"))
            shutil.rmtree(JOURNAL)
        module.exit_json(changed=unconfirmed, confirm=False, left_alone=[])
    names = read(os.path.join(BEFORE, "touched")).splitlines()
    was = dict(reversed(line.split("  ", 1)) for line in read(os.path.join(BEFORE, "tree")).splitlines())
    now = tree()
    others = sorted(name for name in was.keys() | now.keys() if name not in names and was.get(name) != now.get(name))
    diff = [{"prepared": f"{os.path.join(ETC, name)}: {fate(name)}\n"} for name in names]
    if not module.check_mode:
        netdevs = dict.fromkeys((line.split()[0] for line in read(os.path.join(BEFORE, "links")).splitlines()), "")
        snapshot(names, {"addresses": netdevs, "restore": ""})
        forget(True)
        arm(asked["guard_s"])
        report(module, *run(os.path.join(JOURNAL, "restore"), "before", timeout=APPLY_S))
        wrong = [n for n in names if fingerprint(os.path.join(ETC, n)) != fingerprint(os.path.join(BEFORE, "files", n))]
        if wrong:
            module.fail_json(msg=f"not as they were before: {', '.join(wrong)}; {BEFORE}/files has them")
    module.exit_json(changed=True, confirm=True, diff=diff, left_alone=others)


def fate(name):
    return "comes back as it was" if os.path.exists(os.path.join(BEFORE, "files", name)) else "is removed"


def report(module, status, said):
    if status:
        module.fail_json(
            msg=f"{JOURNAL}/restore ended with {status}: {short(said)} — expected: 0. Fix: on the box, sudo netplan "
            f"--debug generate, then sudo {JOURNAL}/restore before. See docs/runbooks/fabric-netplan.md"
        )


def main():
    spec = {
        "state": {"type": "str", "choices": ["look", "present", "kept", "absent"], "required": True},
        "path": {"type": "path"},
        "content": {"type": "str", "default": ""},
        "move": {"type": "list", "elements": "path", "default": []},
        "addresses": {"type": "dict", "default": {}},
        "mtu": {"type": "int", "default": 0},
        "live": {"type": "bool", "default": True},
        "restore": {"type": "str", "default": ""},
        "guard_s": {"type": "int", "default": 60},
    }
    module = AnsibleModule(
        argument_spec=spec, supports_check_mode=True, required_if=[("state", "present", ["path", "content", "restore"])]
    )
    asked = module.params
    if asked["state"] == "look":
        module.exit_json(changed=False, **look())
    elif asked["state"] == "present":
        present(module, asked)
    elif asked["state"] == "kept":
        kept(module)
    else:
        absent(module, asked)


if __name__ == "__main__":
    main()
