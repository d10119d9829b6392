"""The journal of netplan changes on a host: snapshots in files that a shell script can read, the trial of a change in
/run/netplan, and the timer that ends a trial.

/etc/netplan changes only when a trial is confirmed. A host that loses its power during a trial therefore boots with the
old configuration. `netplan try` and netplan's D-Bus write /etc/netplan at once (docs/decisions/0012).

A snapshot is a folder: `files/` has copies of netplan files, `touched` names them and those that did not exist, `links`
has the lines for `restore` about netdevs, `tree` the checksums of all netplan files, and `forget` is a mark.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_guard
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    CommandResult,
    read_text,
    run,
    sha256,
    write_file,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_netplan import ip_json

ETC = "/etc/netplan"
# A file here has precedence over one of the same name in ETC, and a restart of the host removes it.
TRIAL = "/run/netplan"
# In a trial, the content of a file that configures nothing.
NOTHING = "network: {version: 2}\n"
JOURNAL = layout.FABRIC_DIR
# State before the first confirmed change; state before a change that is not confirmed; state before the last change.
BEFORE, PENDING, LAST = (os.path.join(JOURNAL, name) for name in ("before", "pending", "last"))
RESTORE = os.path.join(JOURNAL, "restore")
GUARD = "vllm-spark-fabric-guard"
# Less than the guard's time, so that the two never apply at once.
APPLY_TIMEOUT_S = 45.0


def lines_of(path: str) -> list[str]:
    return (read_text(path) or "").splitlines()


def add_lines(path: str, lines: Iterable[str]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)


def known_netdevs(folder: str) -> list[str]:
    """Return the netdevs in a snapshot's `links`, in their order."""
    return list(dict.fromkeys(line.split()[0] for line in lines_of(os.path.join(folder, "links"))))


def touched(folder: str) -> list[str]:
    return lines_of(os.path.join(folder, "touched"))


def snapshot(paths: Iterable[str], addresses: Mapping[str, str], restore: str) -> None:
    """Save the current state in PENDING. A snapshot that an earlier run left there, unconfirmed, stays: it is the known
    state. `restore` is the text of the restore script; empty if the script stays as it is."""
    stop_guard()
    os.makedirs(os.path.join(PENDING, "files"), mode=0o700, exist_ok=True)
    os.chmod(JOURNAL, 0o700)
    if restore:
        write_file(RESTORE, restore, "0700")
    forget(False)
    add_files(PENDING, {name: os.path.join(ETC, name) for name in map(os.path.basename, paths)})
    add_lines(os.path.join(PENDING, "links"), link_lines(addresses))
    if not os.path.exists(os.path.join(PENDING, "tree")):
        add_lines(os.path.join(PENDING, "tree"), [f"{value}  {name}" for name, value in sorted(tree().items())])
    os.sync()


def forget(journal: bool) -> None:
    """Mark in the snapshot whether the journal is removed with it."""
    mark = os.path.join(PENDING, "forget")
    if journal:
        add_lines(mark, [])
    elif os.path.exists(mark):
        os.unlink(mark)


def add_files(folder: str, sources: Mapping[str, str]) -> None:
    """Copy files with mode, owner and time. `touched` also names the files that do not exist."""
    known = touched(folder)
    for name, source in sources.items():
        if name not in known:
            if os.path.exists(source):
                copy = os.path.join(folder, "files", name)
                shutil.copy2(source, copy)
                stat = os.stat(source)
                os.chown(copy, stat.st_uid, stat.st_gid)
            add_lines(os.path.join(folder, "touched"), [name])


def link_lines(addresses: Mapping[str, str]) -> list[str]:
    """Return the settings that netplan does not take back from a netdev, as `restore` reads them."""
    links = {link["ifname"]: link for link in ip_json("addr")}
    known = known_netdevs(PENDING)
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


def addresses_of(link: Mapping[str, Any]) -> list[str]:
    return [f"{entry['local']}/{entry['prefixlen']}" for entry in link["addr_info"] if entry["family"] == "inet"]


def tree() -> dict[str, str]:
    """Return name -> sha256 of every file in /etc/netplan."""
    names = sorted(os.listdir(ETC)) if os.path.isdir(ETC) else []
    checksums = {name: sha256(os.path.join(ETC, name)) for name in names}
    return {name: checksum for name, checksum in checksums.items() if checksum}


def arm_guard(guard_s: int) -> None:
    """Start the timer that ends the trial. Raises CommandError if it does not start; nothing was changed then."""
    spark_guard.arm(GUARD, guard_s, RESTORE, "pending")


def stop_guard() -> None:
    spark_guard.disarm(GUARD)


def restore(mode: str) -> CommandResult:
    """Run the restore script. `mode` is pending, before, try or keep."""
    return run(RESTORE, mode, timeout_s=APPLY_TIMEOUT_S)


def end_trial() -> CommandResult:
    """End the trial now, apply the old files and stop the timer."""
    result = restore("pending")
    stop_guard()
    return result


def try_files(files: Mapping[str, str | None]) -> None:
    """Place a trial: the content of each netplan file, None for a file that is to be absent."""
    os.makedirs(TRIAL, mode=0o755, exist_ok=True)
    for name, content in files.items():
        write_file(os.path.join(TRIAL, name), NOTHING if content is None else content, "0600")


def trial() -> dict[str, str | None]:
    """Return the files of the trial as try_files got them."""
    texts = {name: read_text(os.path.join(TRIAL, name)) for name in touched(PENDING)}
    return {name: None if text == NOTHING else text for name, text in texts.items() if text is not None}


def keep_files(files: Mapping[str, str | None]) -> None:
    """Write the files of a confirmed trial to ETC. The new ones are first: a loss of power in between leaves both."""
    for name, content in files.items():
        if content is not None:
            write_file(os.path.join(ETC, name), content, "0600")
    for name, content in files.items():
        path = os.path.join(ETC, name)
        if content is None and os.path.exists(path):
            os.unlink(path)
        os.unlink(os.path.join(TRIAL, name))
