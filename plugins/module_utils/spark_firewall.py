"""The firewall table of this host: what is there, and a trial of a new one under a guard. Standard library alone."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_guard
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    CommandError,
    mode_of,
    must,
    read_text,
    run,
    sha256,
    write_file,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_systemd import unit_properties

FILE, TABLE = layout.FIREWALL, layout.FIREWALL_TABLE.split()
UNIT, UNIT_FILE = layout.FIREWALL_UNIT, layout.FIREWALL_UNIT_FILE
FILE_MODE = "0644"
PROGRAM = "/usr/sbin/nft"
# A new table on trial. The guard and the confirmation both take it away, and only one of them can.
TRIAL = f"{layout.RUN_DIR}/firewall.nft"
GUARD = "vllm-spark-firewall-guard"
# The end of a trial: the table before it comes back, or none.
RESTORE = f"""
mv {TRIAL} {TRIAL}.undone &&
if [ -e {FILE} ]; then {PROGRAM} --file {FILE}; else {PROGRAM} delete table {" ".join(TABLE)}; fi
"""
PROPERTIES = ("ActiveState", "UnitFileState", "NeedDaemonReload")
SSH_PORT = 22


def facts() -> dict[str, Any]:
    """Return what is here of the table, and the ports of sshd."""
    return {
        "program": os.access(PROGRAM, os.X_OK),
        "files": {path: [sha256(path) or "", mode_of(path)] for path in (FILE, UNIT_FILE) if os.path.isfile(path)},
        "unit": unit_properties(UNIT, PROPERTIES),
        "loaded": run(PROGRAM, "list", "table", *TABLE).status == 0,
        "ssh_ports": ssh_ports(),
    }


def ssh_ports() -> list[int]:
    """Return the ports on which sshd listens by its configuration; the usual one if there is no sshd to ask."""
    sshd = run("/usr/sbin/sshd", "-T")
    found = re.findall(r"^(?:port |listenaddress .*:)(\d+)$", sshd.stdout, re.MULTILINE) if not sshd.status else []
    return sorted({int(port) for port in found} or {SSH_PORT})


def begin_trial(table: str, guard_s: int) -> None:
    """Load a table and start the timer that ends its trial. Raises CommandError; the old table then stays."""
    os.makedirs(os.path.dirname(TRIAL), mode=0o755, exist_ok=True)
    write_file(TRIAL, table, FILE_MODE)
    try:
        must(PROGRAM, "--check", "--file", TRIAL)
        spark_guard.arm(GUARD, guard_s, "/bin/sh", "-c", RESTORE)
        must(PROGRAM, "--file", TRIAL)
    except CommandError:
        os.unlink(TRIAL)
        spark_guard.disarm(GUARD)
        raise


def keep_trial() -> bool:
    """Keep the table on trial; False if the guard has ended the trial already. Raises CommandError."""
    table = read_text(TRIAL)
    try:
        os.rename(TRIAL, f"{TRIAL}.kept")
    except FileNotFoundError:
        return False
    spark_guard.disarm(GUARD)
    os.makedirs(os.path.dirname(FILE), mode=0o755, exist_ok=True)
    write_file(FILE, table or "", FILE_MODE)
    os.unlink(f"{TRIAL}.kept")
    must("systemctl", "enable", UNIT)
    # Not restart: that would delete the table, and with it what a launch has added.
    must("systemctl", "start", UNIT)
    return True
