"""Facts of the verb `status` beside those of a plan: each deployment on this host, and the counters of its engine.

Reads only, from the standard library alone. Secrets are masked before a text leaves the host.
"""

from __future__ import annotations

import glob
import http.client
import io
import math
import os
import re
import tarfile
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_deployment_state import (
    FAILED,
    GAVE_UP,
    Places,
    history,
    parsed,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import DockerError
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_files import original
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    mode_of,
    parse_object,
    read_object,
    read_text,
    run,
    sha256,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launch_difference import (
    command,
    of_start,
    standing,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launches import edited
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import (
    ADDRESS,
    JUDGED,
    LIVENESS,
    record_of,
    typed,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_requests import engine
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import Secrets, env_pairs, in_script

if TYPE_CHECKING:
    from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import Docker

    from vllm_spark.core.types import ContainerFacts, EnvFacts

# Below the root of the host, which tests choose.
CONFIG, RUN, PROGRAMS = (folder.lstrip("/") for folder in (layout.CONFIG_DIR, layout.RUN_DIR, layout.PROGRAM_DIR))
HISTORY, STATES, UNITS = (folder.lstrip("/") for folder in (layout.HISTORY_DIR, layout.STATES_DIR, layout.UNIT_DIR))
SHOWN_TRANSITIONS = 20
# Files of the toolkit beside a deployment's own folder.
SHARED = (
    f"{PROGRAMS}/*",
    *(f"{PROGRAMS}/{folder}/vllm_spark/*" for folder in ("modules", "pair")),
    *(f"{PROGRAMS}/{folder}/vllm_spark/node/*" for folder in ("modules", "pair")),
    f"{PROGRAMS}/pair/vllm_spark/node/supervise/*",
    "usr/local/bin/vllm-*",
    f"{UNITS}/vllm@*.service",
    f"{UNITS}/vllm@*.service.d/*",
    f"{UNITS}/vllm-liveness@*",
    f"{UNITS}/vllm-gave-up@*",
    *(path.lstrip("/") for path in (layout.NOTIFY_SETTINGS, layout.NOTIFY_ENABLED)),
    f"{UNITS}/vllm-notify.*",
    f"{UNITS}/vllm-lease.*",
    f"{UNITS}/vllm-metrics*",
    f"{UNITS}/*.wants/vllm-metrics*",
    f"{CONFIG}/metrics-*",
    f"{layout.METRICS_PAGE_DIR.lstrip('/')}/*",
    # By which a host is known to have the packages of figures.
    "usr/lib/systemd/system/prometheus*.service",
)

FILE_BYTES, TAIL_BYTES = 1 << 20, 16 * 1024
# Of the journal of a unit that has failed: more than its last traceback.
JOURNAL_LINES = 500
METRICS_TIMEOUT_S, METRICS_BYTES = 3, 8 << 20
# Between two samples of the counters: long enough for tokens of a slow model, short enough to wait for.
SAMPLE_INTERVAL_S = 1.0

# Names of the engine's metrics, the same in vLLM 0.19.1 to 0.33.0 (v1/metrics/loggers.py); prometheus_client appends
# _total to a counter. There is one line per engine, so values of one name are added.
METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:generation_tokens_total": "tokens",
    # Completed requests: their tokens, and the time from the first to the last token.
    "vllm:request_generation_tokens_sum": "ended_tokens",
    "vllm:request_decode_time_seconds_count": "ended",
    "vllm:request_decode_time_seconds_sum": "decode_s",
}
METRIC = re.compile(r"^([\w:]+)(?:\{[^\n]*\})? ([-+.\deE]+)$", re.MULTILINE)


class Present(TypedDict):
    """The launch of a deployment as facts. `deployed` is its `standing` as it was deployed, empty if that is unknown;
    `found` is that of the script on the host. `of_start` and `command` are lines of that script, secrets of the command
    masked. `edited_at` is the time of an edit by hand in seconds since the epoch, None without one."""

    deployed: str
    found: str
    of_start: list[str]
    command: list[str]
    edited_at: float | None


def deployments(names: Iterable[str], root: str = "/") -> dict[str, dict[str, Any]]:
    """Return, by name, the files of each deployment and the last results of its checks."""
    return {name: deployment(name, root) for name in names}


def deployment(name: str, root: str) -> dict[str, Any]:
    folder = os.path.join(root, CONFIG, name)
    return {
        "launch": masked_launch(folder),
        "failed": record_of(os.path.join(folder, layout.FAILED)) or None,
        "address": typed(read_object(os.path.join(folder, "liveness.json")), ADDRESS) or None,
        "liveness": with_age(os.path.join(root, RUN, name, "liveness.json")),
        "judged": last_judged(os.path.join(root, HISTORY, f"{name}.jsonl"), record_of(folder).get("launch")),
        "history": history(name, Places(histories=os.path.join(root, STATES)), SHOWN_TRANSITIONS),
        "journal": journal_of_failure(name, root),
    }


def journal_of_failure(name: str, root: str) -> list[str]:
    """Return the last lines of the unit's journal, secrets masked, if the deployment has failed or gave up."""
    state = parsed(text(os.path.join(root, RUN, name, "state.json")))
    if state is None or state["state"] not in (FAILED, GAVE_UP):
        return []
    lines = ("--lines", str(JOURNAL_LINES), "--unit", f"vllm@{name}.service")
    found = run("journalctl", "--quiet", "--no-pager", "--output", "cat", *lines).stdout
    return masked(found, os.path.join(root, CONFIG, name)).splitlines()


def present(name: str, root: str = "/") -> Present | None:
    """Return what the launch of a deployment is on this host; None without one."""
    folder = os.path.join(root, CONFIG, name)
    path = os.path.join(folder, "launch")
    script = read_text(path)
    if script is None:
        return None
    by_hand = edited(folder)
    deployed = read_text(original(folder)) if by_hand else script
    return {
        "deployed": standing(deployed) if deployed else "",
        "found": standing(script),
        "of_start": of_start(script),
        "command": command(masked_launch(folder)),
        "edited_at": os.stat(path).st_mtime if by_hand else None,
    }


def files(names: Iterable[str], root: str = "/") -> dict[str, list[str]]:
    """Return path -> [sha256, mode] of every file that the toolkit may have placed."""
    patterns = [*SHARED, *(f"{CONFIG}/{name}/{part}" for name in names for part in ("*", "mounts/*"))]
    paths = [path for pattern in patterns for path in glob.glob(os.path.join(root, pattern)) if os.path.isfile(path)]
    return {os.path.join("/", os.path.relpath(path, root)): checksum_and_mode(path) for path in sorted(paths)}


def checksum_and_mode(path: str) -> list[str]:
    try:
        return [sha256(path) or "", mode_of(path)]
    except OSError:
        return ["", ""]


def env_changes(path: str, content: str) -> EnvFacts:
    """Return the names that a deploy would add to an env file, remove from it, or give another value. Values stay on
    the host."""
    current_text = text(path)
    desired, current = dict(env_pairs(content)), dict(env_pairs(current_text))
    return {
        "added": sorted(desired.keys() - current.keys()),
        "removed": sorted(current.keys() - desired.keys()),
        "changed": sorted(name for name in desired.keys() & current.keys() if desired[name] != current[name]),
        "same": current_text == content and os.path.isfile(path) and mode_of(path) == "0600",
    }


def masked_launch(folder: str) -> str:
    """Return the launch script on the host. Texts that look like secrets are masked: the script may have been edited
    by hand."""
    return masked(text(os.path.join(folder, "launch")), folder)


def masked(content: str, folder: str) -> str:
    """Return a text without the secrets of the deployment in this folder, and without what looks like one."""
    secrets = Secrets()
    secrets.add(env_pairs(text(os.path.join(folder, "env"))))
    secrets.add(in_script(text(os.path.join(folder, "launch"))))
    secrets.learn(content)
    return secrets.masker()(content)


def text(path: str) -> str:
    """Return the beginning of a file, empty if there is none."""
    return read_text(path, FILE_BYTES) or ""


def with_age(path: str) -> dict[str, Any] | None:
    """Return the object in a JSON file with `age_s`, the seconds since it was written. None if there is none."""
    document = typed(read_object(path), LIVENESS)
    try:
        return {**document, "age_s": max(0.0, time.time() - os.path.getmtime(path))} if document else None
    except OSError:
        return None


def last_judged(path: str, launch: str | None) -> dict[str, Any] | None:
    """Return the last judgement of this launch in a history, or the last one of any launch if it has not been judged. A
    line that was cut off during its write is skipped."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    entries = [entry for line in reversed(lines) if (entry := typed(parse_object(line), JUDGED))]
    return next((entry for entry in entries if entry.get("launch") == launch), entries[0] if entries else None)


def derived(docker: Docker, container: ContainerFacts) -> dict[str, Any] | None:
    """Return what the build of a derived image recorded in it, such as patches that were applied already. None for
    other images."""
    if layout.INPUTS_LABEL not in container["labels"]:
        return None
    try:
        packed = docker.raw(f"/containers/{container['id']}/archive?path={layout.DERIVED_RECORD}")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            member = archive.extractfile("derived.json")
            return parse_object(member.read(FILE_BYTES).decode("utf-8", "replace")) if member else None
    except (DockerError, tarfile.TarError, KeyError):
        return None


def first_sample(address: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Return the engine's counters now; None if it does not answer. `at` is this host's monotonic clock."""
    if not address or not ("socket" in address or {"address", "port"} <= address.keys()):
        return None
    server = address.get("socket") or (address["address"], address["port"])
    connection = engine(server, METRICS_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        at = time.monotonic()
        response = connection.getresponse()
        metrics = response.read(METRICS_BYTES).decode("utf-8", "replace")
    except (OSError, OverflowError, ValueError, http.client.HTTPException):
        return None  # also for an address or a port that no server has
    finally:
        connection.close()
    return {**counters(metrics), "at": at} if response.status == http.client.OK else None


def counters(metrics: str) -> dict[str, float]:
    """Return the values of METRICS, summed over the engines. A metric that the engine does not have is absent."""
    values: dict[str, float] = {}
    for name, value in METRIC.findall(metrics):
        if name in METRICS and math.isfinite(number := _float(value)):
            values[METRICS[name]] = values.get(METRICS[name], 0.0) + number
    return values


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def second_sample(address: Mapping[str, Any] | None, first: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return the counters again if requests run: the difference is the current speed. None if no request runs."""
    if not first or not first.get("running"):
        return None
    time.sleep(max(0.0, SAMPLE_INTERVAL_S - (time.monotonic() - first["at"])))
    return first_sample(address)
