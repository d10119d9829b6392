"""The edge on this host: what is there, and the keys of persons in HAProxy's map. Standard library alone."""

from __future__ import annotations

import grp
import gzip
import os
import pwd
import re
import shutil
import time
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_deployment_state import PLACES
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_admin import ROUTE_SOCKET, SOCKET, ask_admin
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_edge_key import parse, persons
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    mode_of,
    must,
    read_text,
    run,
    sha256,
    write_file,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_systemd import unit_properties

ACCOUNT, FOLDER = layout.EDGE_GROUP, layout.EDGE_DIR
CONFIG, KEYS, CERTIFICATE = layout.EDGE_CONFIG, layout.EDGE_KEYS, layout.EDGE_CERTIFICATE
AUTHORITY, TOKENS = layout.EDGE_AUTHORITY, layout.EDGE_TOKENS
NAMES_CERTIFICATE, CERTIFICATE_LIST = layout.EDGE_NAMES_CERTIFICATE, layout.EDGE_CERTIFICATE_LIST
# The second stage.
ROUTE, ROUTE_UNIT, ROUTE_UNIT_FILE = layout.EDGE_ROUTE, layout.EDGE_ROUTE_UNIT, layout.EDGE_ROUTE_UNIT_FILE
# deployment -> state.
STATES = PLACES.map
# Person -> the end of its refusal.
SPENT = layout.EDGE_SPENT
UNIT, UNIT_FILE = layout.EDGE_UNIT, layout.EDGE_UNIT_FILE
# The units and timers that warn before the certificate ends, and that count the tokens of the day with this program.
TIMED_FILES = (
    layout.EDGE_END_UNIT_FILE,
    layout.EDGE_END_TIMER_FILE,
    layout.EDGE_QUOTA_UNIT_FILE,
    layout.EDGE_QUOTA_TIMER_FILE,
)
QUOTA = layout.EDGE_QUOTA
# The units of both stages -> their runtime APIs.
STAGES = {UNIT: SOCKET, ROUTE_UNIT: ROUTE_SOCKET}
PROGRAM = "/usr/sbin/haproxy"
PROC = "/proc"
VERSION = re.compile(r"HAProxy version (\S+)")
# The changelog of Debian's or Ubuntu's package, and the fault that the edge's reading of bodies had.
CHANGELOG, MAX_CHANGELOG = "/usr/share/doc/haproxy/changelog.Debian.gz", 1 << 20
CVE = "CVE-2025-11230"
# Only there if requests may start models: the program, its list of models, its unit.
SWITCH, SWITCH_LIST = layout.EDGE_SWITCH, layout.EDGE_SWITCH_LIST
SWITCH_UNIT, SWITCH_UNIT_FILE = layout.EDGE_SWITCH_UNIT, layout.EDGE_SWITCH_UNIT_FILE
SWITCH_ROOT = (layout.SWITCH_ROOT_SOCKET_FILE, layout.SWITCH_ROOT_UNIT_FILE)
# Root writes, and the group of the edge reads. New files get the group of the folder.
FOLDER_MODE, FILE_MODE, UNIT_MODE, PROGRAM_MODE = "2750", "0640", "0644", "0755"
PUBLIC = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
PROPERTIES = ("ActiveState", "UnitFileState", "NeedDaemonReload", "Result")
# HAProxy reads its configuration again, which takes less than a second on a Spark that has nothing else to do.
TAKEOVER_S, POLL_INTERVAL_S = 30.0, 0.1


class EdgeError(Exception):
    """The edge did not take a change."""


def facts() -> dict[str, Any]:
    """Return what is here of an edge."""
    own = (CONFIG, ROUTE, CERTIFICATE_LIST, TOKENS, AUTHORITY, UNIT_FILE, ROUTE_UNIT_FILE, *TIMED_FILES, QUOTA)
    files, keys = (*own, *switch_files()), read_keys()
    return {
        "program": os.access(PROGRAM, os.X_OK),
        "account": has_account(),
        "files": {path: [sha256(path) or "", mode_of(path)] for path in files if os.path.isfile(path)},
        **certificates(),
        "keys": persons(keys),
        "key_hashes": keys,
        "may_switch": may_switch(keys),
        "batch": batch(keys),
        "unit": unit_state(),
        "route": unit_state(ROUTE_UNIT),
        "switch": unit_state(SWITCH_UNIT),
        "haproxy": haproxy(),
    }


def certificates() -> dict[str, str]:
    """Return the edge's certificates with their chains and the authorities that it trusts, only the public part."""
    files = {"certificate": CERTIFICATE, "names_certificate": NAMES_CERTIFICATE, "authority": AUTHORITY}
    return {name: "".join(PUBLIC.findall(read_text(path) or "")) for name, path in files.items()}


def haproxy() -> dict[str, Any]:
    """Return the version of the installed HAProxy, empty without one; whether the changelog of its package names the
    fix of CVE, None without a changelog; and the units whose process is another program than the installed one."""
    version = VERSION.match(run(PROGRAM, "-v").stdout)
    return {
        "version": version[1] if version else "",
        "changelog_names_fix": _names_fix(),
        "outdated": [unit for unit in STAGES if _is_outdated(unit)],
    }


def _names_fix() -> bool | None:
    try:
        with gzip.open(CHANGELOG, "rt", encoding="utf-8", errors="replace") as changelog:
            return CVE in changelog.read(MAX_CHANGELOG)
    except OSError:
        return None


def _is_outdated(unit: str) -> bool:
    """Return True if the process of a unit runs a file that another one has replaced."""
    process = unit_properties(unit, ("MainPID",)).get("MainPID", "0")
    try:
        return process != "0" and not os.path.samefile(f"{PROC}/{process}/exe", PROGRAM)
    except OSError:
        return False


def switch_files() -> tuple[str, ...]:
    """Return the files of the program that starts models. The unit comes after what it starts."""
    return SWITCH, SWITCH_LIST, *SWITCH_ROOT, SWITCH_UNIT_FILE


def may_switch(keys: dict[str, str]) -> list[str]:
    """Return the persons whose requests may start a model."""
    return sorted({entry.person for entry in map(parse, keys.values()) if entry.may_switch})


def batch(keys: dict[str, str]) -> list[str]:
    """Return the persons whose requests leave the engine to others."""
    return sorted({entry.person for entry in map(parse, keys.values()) if entry.batch})


def has_account() -> bool:
    """Return True if the user and the group of the edge exist."""
    try:
        return pwd.getpwnam(ACCOUNT).pw_gid == grp.getgrnam(ACCOUNT).gr_gid
    except KeyError:
        return False


def ensure_account() -> None:
    """Create the user and the group that are missing. Raises CommandError."""
    try:
        grp.getgrnam(ACCOUNT)
    except KeyError:
        must("groupadd", "--system", ACCOUNT)
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        home = ("--no-create-home", "--home-dir", "/nonexistent")
        must("useradd", "--system", *home, "--shell", "/usr/sbin/nologin", "--gid", ACCOUNT, ACCOUNT)


def ensure_folder() -> None:
    """Create the folder whose files the edge may read."""
    os.makedirs(FOLDER, mode=0o750, exist_ok=True)
    shutil.chown(FOLDER, "root", ACCOUNT)
    os.chmod(FOLDER, int(FOLDER_MODE, 8))


def ensure_spent() -> None:
    """Create the folder of the edge's user, and the file of persons that have used their tokens of today, which the
    configuration names. The unit makes both again."""
    folder = os.path.dirname(SPENT)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    with open(SPENT, "a", encoding="utf-8"):
        pass
    for path in (folder, SPENT):
        shutil.chown(path, ACCOUNT, ACCOUNT)
    # A strict umask of root closes a folder that it has just made.
    above = os.path.dirname(folder)
    os.chmod(above, os.stat(above).st_mode | 0o011)  # noqa: S103  the edge passes through it


def ensure_states() -> None:
    """Create the file of the states of this host's deployments, which its configuration names. The unit of the edge
    makes it again after a boot, and the programs of the deployments fill it."""
    os.makedirs(os.path.dirname(STATES), mode=0o755, exist_ok=True)
    with open(STATES, "a", encoding="utf-8"):
        pass


def unit_state(unit: str = UNIT) -> dict[str, str]:
    """Return properties of a unit by name."""
    return unit_properties(unit, PROPERTIES)


def follow(closed: bool) -> None:
    """Let the edge follow a launch that was restored. An open engine needs the port of the edge. A host that never had
    an edge stays as it is. The edge starts as soon as the port is free."""
    if os.path.isfile(UNIT_FILE):
        run("systemctl", *(("enable", "--now", "--no-block") if closed else ("disable", "--now")), UNIT)


def reload() -> None:
    """Reload the unit, which reloads that of the second stage, and wait until the new processes have taken over:
    systemd returns before that, and a port that the new configuration adds is closed until then. Raises EdgeError if
    one does not take over, and CommandError."""
    before = {unit: (admin_socket, worker(admin_socket)) for unit, admin_socket in STAGES.items()}
    end = time.monotonic() + TAKEOVER_S
    must("systemctl", "reload", UNIT)
    for unit, (admin_socket, old) in before.items():
        while worker(admin_socket) in ("", old):
            if time.monotonic() > end:
                raise EdgeError(f"the old process of {unit} still answers {TAKEOVER_S:.0f} s after its reload")
            time.sleep(POLL_INTERVAL_S)


def worker(admin_socket: str) -> str:
    """Return the process id of the HAProxy that answers a runtime API, empty while none does."""
    try:
        lines = ask_admin("show info", admin_socket).splitlines()
    except OSError:
        return ""
    return next((line.partition(": ")[2] for line in lines if line.startswith("Pid: ")), "")


def read_keys(path: str = KEYS) -> dict[str, str]:
    """Return the keys of the map: hash -> entry (spark_edge_key)."""
    lines = [line.split() for line in (read_text(path) or "").splitlines()]
    return {words[0]: words[1] for words in lines if len(words) > 1 and not words[0].startswith("#")}


def write_keys(keys: dict[str, str], path: str = KEYS) -> None:
    """Replace the map."""
    lines = ["# SHA-256 of a key, person/right/class/quota. Written by vllm-spark key; no key is on this host.\n"]
    lines += [f"{key} {name}\n" for key, name in sorted(keys.items(), key=lambda item: item[1])]
    write_file(path, "".join(lines), FILE_MODE)


def apply_keys(keys: dict[str, str], path: str = KEYS, admin_socket: str = SOCKET) -> bool:
    """Make HAProxy's map in memory that of the file, without a reload. Returns False if no edge runs. Raises EdgeError
    if the map is another one afterwards."""
    if (before := shown_keys(path, admin_socket)) is None:
        return False
    for key in before.keys() - keys.keys():
        ask_admin(f"del map {path} {key}", admin_socket)
    for key, name in keys.items():
        if before.get(key) != name:
            ask_admin(f"{'set' if key in before else 'add'} map {path} {key} {name}", admin_socket)
    if (after := shown_keys(path, admin_socket)) != keys:
        raise EdgeError(f"HAProxy has the keys of {sorted((after or {}).values())}, the file {sorted(keys.values())}")
    return True


def shown_keys(path: str, admin_socket: str) -> dict[str, str] | None:
    """Return the keys of HAProxy's map in memory; None if no edge runs."""
    try:
        answer = ask_admin(f"show map {path}", admin_socket)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    # Each line is an address in memory, the hash and the name.
    lines = [line.split() for line in answer.splitlines()]
    return {words[1]: words[2] for words in lines if len(words) == 3}  # noqa: PLR2004
