#!/usr/bin/python
"""Gather the logs and the state of a host and of its model servers, without secrets, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_collect_logs
short_description: Gather the logs and the state of a host, secrets masked, in one round trip
description:
  - Finds the deployments on the host, so it needs neither an inventory nor a running server.
  - Every log is bounded, and a line says where others are left out. What could not be read is noted, and is no failure.
  - Secrets are masked before a text leaves the host. Changes nothing, and writes no file there.
author: vllm-spark
options: {}
attributes:
  check_mode:
    support: full
    description: The module only reads.
"""

EXAMPLES = r"""
- name: Gather logs and state
  vllm_collect_logs:
"""

RETURN = r"""
collected:
  description:
    - 'JSON, compressed by gzip, in base64: C(files), a map of path to text, and C(manifest): host, time, deployments,
      notes, weak_secrets (names).'
  returned: always
  type: str
"""

import glob
import json
import os
import platform
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_bundle import (
    JOURNAL,
    KIB,
    SHORT,
    Bundle,
    read_file,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_fabric import fabric
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_host import host, memory
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launches import KEPT

CONFIG_DIR, RUN_DIR = layout.CONFIG_DIR, layout.RUN_DIR
# The files of a deployment's run there: what the toolkit says of it.
RUN_FILES = ("state.json", "liveness.json", "session.env")
# The history of the states of each deployment.
STATES_DIR = layout.STATES_DIR
PROC = "/proc"
# The folder of the edge below CONFIG_DIR, and its units.
EDGE = os.path.basename(layout.EDGE_DIR)
EDGE_UNITS = (
    layout.EDGE_UNIT,
    layout.EDGE_ROUTE_UNIT,
    layout.EDGE_END_UNIT,
    layout.EDGE_QUOTA_UNIT,
    layout.EDGE_SWITCH_UNIT,
)

RAY_FILE = (32 * KIB, 64 * KIB)
MAX_RAY_FILES = 40
MAX_CONFIG_FILES = 60
# Ray's logs of the cluster; the others are of one worker.
RAY_FIRST = ("gcs_server", "raylet", "monitor", "runtime_env")

# systemd's message IDs of "Starting …" and "Started …", with the run's ID: sd-messages.h, SD_MESSAGE_UNIT_STARTING and
# _STARTED. job.c emits them, and omits the first if the second follows at once.
STARTS = ("7d4958e842da4a758f6c1cdc7b36dcc5", "39f53479d3a045ac8e11786248231fbf")
# A line of `systemctl list-units`: unit, loaded or not, active or not.
LISTED = re.compile(r"\s*vllm@(\S+)\.service\s+\S+\s+(\S+)")
# What is a folder's name in a bundle, too; systemd escapes other bytes of a unit's name with a backslash.
NAME = re.compile(r"[\w][\w.-]*", re.ASCII)

# The first line of the text about the end of the boot before, by which the doctor knows it; what the kernel kept of
# that end; and what was recorded within the ten minutes before it, on the host that records.
BEGINS, LAST_LINES = "vllm-spark: the end of the boot before", "400"
PSTORE, MAX_PSTORE = ("/var/lib/systemd/pstore", "/sys/fs/pstore"), 20
RECORDER = "http://127.0.0.1:25096"
RECORDED = (
    'max_over_time(ALERTS{{alertstate="firing",spark="{0}"}}[10m]) or '
    'last_over_time({{__name__=~"watch:(temperature|power|memory)",spark="{0}"}}[10m])'
)

COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "host/gpu.log": (
        ("nvidia-smi", "--query-gpu=power.draw,utilization.gpu,clocks.sm", "--format=csv,noheader"),
        ("nvidia-smi", "-q"),
    ),
    "host/memory.txt": (
        ("free", "--mebi"),
        ("swapon", "--show"),
        ("cat", "/proc/meminfo"),
        ("cat", "/proc/pressure/memory"),
    ),
    "host/disk.txt": (("df", "--human-readable", "--print-type"), ("df", "--inodes", "--human-readable")),
    # Names of programs only: an argv may hold a secret.
    "host/processes.txt": (("ps", "-eo", "pid,ppid,user:12,rss,pcpu,stat,etime,comm", "--sort=-rss"),),
    "host/ports.txt": (("ss", "--listening", "--tcp", "--numeric", "--processes"),),
    "host/network.txt": (("ip", "-statistics", "address"), ("ip", "route")),
    "host/clock.txt": (("timedatectl",), ("timedatectl", "timesync-status"), ("chronyc", "tracking")),
    "host/system.txt": (
        ("uname", "-a"),
        ("uptime",),
        ("cat", "/etc/os-release"),
        ("cat", "/etc/dgx-release"),
        ("nvidia-ctk", "--version"),
        ("systemctl", "list-units", "--all", "--no-pager", "vllm*"),
        ("systemctl", "list-timers", "--all", "--no-pager", "vllm*"),
        ("systemctl", "--failed", "--no-pager"),
    ),
    # The last, because a Docker that hangs takes the time of each of its commands.
    "host/docker.txt": (
        ("docker", "version"),
        ("docker", "info"),
        ("docker", "ps", "--all", "--no-trunc"),
        ("docker", "images", "--digests", "--no-trunc"),
    ),
}


def deployment_names(bundle: Bundle) -> list[str]:
    """Return every deployment on this host, the running and failed ones first. A unit without files that does not run
    was never deployed."""
    listed, _ = bundle.output(
        "systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "vllm@*.service"
    )
    states = {match[1]: match[2] for line in listed.splitlines() if (match := LISTED.match(line))}
    running = [name for name, active in states.items() if active != "inactive"]
    # The folder of the edge is no deployment, and neither is that of the jobs of a pull.
    placed = [name for name in folders(CONFIG_DIR) if name != EDGE]
    run = [name for name in folders(RUN_DIR) if any(file in RUN_FILES for file in files(os.path.join(RUN_DIR, name)))]
    found = list(dict.fromkeys([*running, *placed, *run]))
    strange = [name for name in found if not NAME.fullmatch(name)]
    for name in strange:
        bundle.note(f"{name!r} is not a deployment's name: its unit and files were left out")
    return [name for name in found if name not in strange]


def folders(path: str) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and entry.name[0] != ".")
    except OSError:
        return []


def files(path: str) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(path) if not entry.is_dir())
    except OSError:
        return []


def collect_deployment(bundle: Bundle, name: str) -> dict[str, str]:
    """Store the texts of one deployment, the most important first. Returns the state of its unit."""
    unit, target = f"vllm@{name}.service", f"deployments/{name}"
    shown, _ = bundle.output("systemctl", "show", "--no-pager", unit)
    bundle.put(f"{target}/unit-state.txt", shown)
    bundle.commands(f"{target}/unit.txt", ("systemctl", "cat", "--no-pager", unit))
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    collect_config(bundle, name, target)
    for file in RUN_FILES:
        bundle.file(f"{target}/run/{file}", f"{RUN_DIR}/{name}/{file}")
    bundle.file(f"{target}/states.jsonl", f"{STATES_DIR}/{name}.jsonl")
    bundle.file(f"{target}/judged.jsonl", f"{layout.HISTORY_DIR}/{name}.jsonl")
    bundle.file(f"{target}/starts.json", f"{layout.STARTS_DIR}/{name}.json")
    logged = collect_runs(bundle, unit, state, target)
    liveness = f"vllm-liveness@{name}.service"
    bundle.journal(f"{target}/liveness.log", f"_SYSTEMD_UNIT={liveness}", "+", f"UNIT={liveness}")
    container = inspect(bundle, name, target)
    if container and not logged:
        bundle.note(f"{unit}: the journal has no line of this run, so the log is from docker")
        bundle.commands(f"{target}/docker.log", ("docker", "logs", "--timestamps", "--tail", "5000", f"vllm-{name}"))
    collect_ray(bundle, container, target)
    return {key: state.get(key, "") for key in ("ActiveState", "SubState", "Result", "NRestarts")}


def collect_config(bundle: Bundle, name: str, target: str) -> None:
    """Store the files of a deployment and of its earlier launches. Dotfiles are interrupted writes; of mounts only the
    names are stored."""
    top = os.path.join(CONFIG_DIR, name)
    count = 0
    for below in KEPT.values():
        # The key of a pair's link tells nothing about a fault.
        for file in (file for file in files(os.path.join(top, below)) if file[0] != "." and file != "link.key"):
            count += 1
            if count > MAX_CONFIG_FILES:
                bundle.note(f"{top}: more than {MAX_CONFIG_FILES} files, the rest is left out")
                return
            path = os.path.join(below, file)
            bundle.file(f"{target}/{path}", os.path.join(top, path))
    mounts = os.path.join(top, "mounts")
    if os.path.isdir(mounts):
        bundle.commands(f"{target}/mounts.txt", ("ls", "-l", mounts))


def collect_runs(bundle: Bundle, unit: str, state: dict[str, str], target: str) -> bool:
    """Store the journal of the newest run of a unit and of the run before. Returns whether one has a line."""
    # systemd's own messages name the runs: an index lookup, however long the journal is.
    messages, _ = bundle.output(
        *("journalctl", "--quiet", "--no-pager", "--output", "json", "--output-fields", "INVOCATION_ID"),
        *("--reverse", "--lines", "4", *(f"MESSAGE_ID={message}" for message in STARTS), f"UNIT={unit}"),
    )
    current = [state["InvocationID"]] if state.get("InvocationID") else []
    runs = list(dict.fromkeys([*current, *(run for line in messages.splitlines() if (run := invocation(line)))]))[:2]
    if not runs:
        return bundle.journal(f"{target}/journal.log", f"_SYSTEMD_UNIT={unit}", "+", f"UNIT={unit}", bounds=JOURNAL)
    logged = False
    for run, (path, bounds) in zip(runs, (("journal.log", JOURNAL), ("journal-previous.log", SHORT)), strict=False):
        # The messages of the engine, and those of systemd about it.
        matches = (f"_SYSTEMD_INVOCATION_ID={run}", "+", f"INVOCATION_ID={run}")
        logged |= bundle.journal(f"{target}/{path}", *matches, bounds=bounds)
    return logged


def invocation(line: str) -> str:
    """Return the ID of the run in a line of `journalctl --output json`, or an empty text."""
    try:
        run = json.loads(line).get("INVOCATION_ID")
    except (ValueError, AttributeError):
        return ""
    return run if isinstance(run, str) and re.fullmatch("[0-9a-f]{32}", run) else ""


def inspect(bundle: Bundle, name: str, target: str) -> dict[str, Any]:
    """Store the container as `docker inspect` shows it, and return it; empty without one."""
    text, _ = bundle.output("docker", "inspect", "--type", "container", f"vllm-{name}")
    try:
        (container,) = json.loads(text)
    except ValueError:
        bundle.note(f"{name}: docker shows no container vllm-{name}; Docker removes it when it ends")
        return {}
    bundle.put_json(f"{target}/container.json", container)
    return dict(container)


def collect_ray(bundle: Bundle, container: dict[str, Any], target: str) -> None:
    """Store Ray's own logs, which are in the container and disappear with it. They are read through the container's
    first process, which starts nothing there and sends no request."""
    pid = container.get("State", {}).get("Pid")
    if not pid:
        return
    top = os.path.join(PROC, str(pid), "root", "tmp", "ray")
    try:
        # The link is absolute, so it would lead to the host's own /tmp.
        session = os.path.basename(os.readlink(os.path.join(top, "session_latest")))
        logs = os.path.join(top, session, "logs")
        if any(os.path.islink(part) for part in (os.path.join(top, session), logs)):
            raise OSError(40, "a link, which may lead out of the container", logs)
        entries = [entry for entry in os.scandir(logs) if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)]
    except FileNotFoundError:
        return  # the engine runs without Ray
    except OSError as error:
        bundle.note(f"{target}: Ray's logs: {error.strerror}")
        return
    newest = sorted((entry for entry in entries if entry.stat().st_size), key=lambda entry: -entry.stat().st_mtime)
    newest.sort(key=lambda entry: not entry.name.startswith(RAY_FIRST))
    for entry in newest[:MAX_RAY_FILES]:
        bundle.file(f"{target}/ray/{entry.name.removesuffix('.log')}.log", entry.path, RAY_FILE, follow=False)
    if len(newest) > MAX_RAY_FILES:
        bundle.note(f"{target}: {len(newest) - MAX_RAY_FILES} of Ray's logs are left out, the oldest")


def collect_host(bundle: Bundle) -> None:
    """Store the texts that are not of one deployment."""
    if not bundle.journal("host/kernel.log", "--dmesg", "--boot", "0"):
        bundle.commands("host/kernel.log", ("dmesg", "--time-format", "iso"), bounds=SHORT)
    bundle.journal("host/kernel-previous.log", "--dmesg", "--boot", "-1")
    collect_end_before(bundle)
    bundle.journal("host/docker.log", "--boot", "0", "_SYSTEMD_UNIT=docker.service")
    # Not a log for the doctor: a switch of last week that failed is no fault of today.
    bundle.journal("host/switch.txt", "SYSLOG_IDENTIFIER=vllm-switch")
    # What the owner could not be told.
    bundle.journal("host/notify.txt", "SYSLOG_IDENTIFIER=vllm-notify")
    bundle.put_json("host/facts.json", facts(bundle))
    for path, commands in COMMANDS.items():
        bundle.commands(path, *commands)


def collect_end_before(bundle: Bundle) -> None:
    """Store how the boot before ended: the last lines of its journal, what the kernel kept (systemd-pstore moves it to
    the disk), and what was recorded until then."""
    path = "host/boot-previous.log"
    if not bundle.journal(path, "--boot", "-1", "--lines", LAST_LINES):
        return
    parts = [BEGINS, bundle.files[path]]
    kept = sorted(one for folder in PSTORE for one in glob.glob(f"{folder}/**", recursive=True) if os.path.isfile(one))
    for one in kept[:MAX_PSTORE]:
        with suppress(OSError):
            parts += [f"{one}:", read_file(one, SHORT)]
    with suppress(OSError):
        host = read_file(layout.METRICS_KEPT, SHORT).partition("SPARK=")[2].strip()
        at = bundle.files[path].rstrip().rpartition("\n")[2].partition("+")[0]
        query = ("promtool", "query", "instant", f"--time={at}Z", RECORDER, RECORDED.format(host))
        parts += ["vllm-spark: recorded until then", bundle.output(*query)[0]]
    bundle.put(path, "\n".join(parts))


def collect_edge(bundle: Bundle) -> None:
    """Store the configurations, the state and the log of the edge, if there is one. Not its certificate's key, and not
    the keys of persons. The log has one line per request, so its name does not end as those that the doctor reads."""
    if not os.path.isdir(os.path.join(CONFIG_DIR, EDGE)):
        return
    for name in ("haproxy.cfg", "route.cfg"):
        bundle.file(f"edge/{name}", os.path.join(CONFIG_DIR, EDGE, name))
    bundle.commands("edge/unit-state.txt", ("systemctl", "show", "--no-pager", *EDGE_UNITS))
    matches = [word for unit in EDGE_UNITS for word in (f"_SYSTEMD_UNIT={unit}", "+", f"UNIT={unit}", "+")][:-1]
    bundle.journal("edge/journal.txt", *matches)


def facts(bundle: Bundle) -> dict[str, Any]:
    """Return the facts of spark_facts that are not in other files of the bundle."""
    result: dict[str, Any] = {
        "hostname": platform.node(),
        "machine": platform.machine(),
        "kernel": platform.release(),
    }
    readers: tuple[tuple[str, Callable[[], Any]], ...] = (("memory", memory), ("host", host), ("fabric", fabric))
    for name, read in readers:
        try:
            result[name] = read()
        except (OSError, ValueError, KeyError) as error:
            bundle.note(f"facts, {name}: {type(error).__name__}: {error}")
    return result


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    bundle = Bundle()
    bundle.deployments = {name: collect_deployment(bundle, name) for name in deployment_names(bundle)}
    collect_edge(bundle)
    collect_host(bundle)
    module.exit_json(changed=False, collected=bundle.packed())


if __name__ == "__main__":
    main()
