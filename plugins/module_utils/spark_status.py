"""What `status` asks of a Spark beside what a plan asks: each deployment that lies here, and what its engine counts.

Reads only, from the standard library alone. No text leaves the Spark before its secrets are masked.
"""

from __future__ import annotations

import glob
import hashlib
import http.client
import io
import json
import os
import re
import tarfile
import time

from ansible.module_utils.spark_docker import DockerError
from ansible.module_utils.spark_secrets import Secrets, env_pairs, in_script

CONFIG, RUN, HISTORY = "etc/vllm-spark", "run/vllm-spark", "var/lib/vllm-spark/history"
# What the toolkit places beside a deployment's own folder.
SHARED = (
    "usr/local/lib/vllm-spark/*",
    "usr/local/bin/vllm-*",
    "etc/systemd/system/vllm@*.service",
    "etc/systemd/system/vllm@*.service.d/*",
    "etc/systemd/system/vllm-liveness@*",
)

FILE_BYTES, TAIL_BYTES = 1 << 20, 16 * 1024
METRICS_TIMEOUT_S, METRICS_BYTES = 3, 8 << 20
# Between two looks at a counter: long enough for tokens of a slow model, short enough to wait for.
BETWEEN_S = 1.0

# Names of the engine's metrics, the same in vLLM 0.19.1 to 0.33.0 (v1/metrics/loggers.py); prometheus_client appends
# _total to a counter. One line an engine, so values of one name are added up.
METRICS = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:generation_tokens_total": "tokens",
    # Of requests that have ended: their tokens, and the time from the first to the last one.
    "vllm:request_generation_tokens_sum": "ended_tokens",
    "vllm:request_decode_time_seconds_count": "ended",
    "vllm:request_decode_time_seconds_sum": "decode_s",
}
METRIC = re.compile(r"^([\w:]+)(?:\{[^\n]*\})? ([-+.\deE]+)$", re.MULTILINE)


def deployments(found, root="/"):
    """By name: what lies in its folder and what was last said of it."""
    return {name: deployment(name, root) for name in found}


def deployment(name, root):
    folder = os.path.join(root, CONFIG, name)
    return {
        "launch": masked_launch(folder),
        "failed": document(os.path.join(folder, "failed", "deployed.json")),
        "address": document(os.path.join(folder, "liveness.json")),
        "liveness": aged(os.path.join(root, RUN, name, "liveness.json")),
        "judged": last_line(os.path.join(root, HISTORY, f"{name}.jsonl")),
    }


def files(found, root="/"):
    """path -> [sha256, mode] of every file that the toolkit may have placed."""
    patterns = [*SHARED, *(f"{CONFIG}/{name}/{part}" for name in found for part in ("*", "mounts/*"))]
    paths = [path for pattern in patterns for path in glob.glob(os.path.join(root, pattern)) if os.path.isfile(path)]
    return {os.path.join("/", os.path.relpath(path, root)): [sha256(path), mode(path)] for path in sorted(paths)}


def env_changes(path, content):
    """Names that a deploy would add to an env file, take out of it, or give another value. Values go nowhere."""
    wanted, there = dict(env_pairs(content)), dict(env_pairs(text(path)))
    return {
        "added": sorted(wanted.keys() - there.keys()),
        "removed": sorted(there.keys() - wanted.keys()),
        "changed": sorted(name for name in wanted.keys() & there.keys() if wanted[name] != there[name]),
        "same": text(path) == content and os.path.isfile(path) and mode(path) == "0600",
    }


def masked_launch(folder):
    """The launch as it lies there, without what looks like a secret: somebody may have edited it by hand."""
    script, secrets = text(os.path.join(folder, "launch")), Secrets()
    secrets.add(env_pairs(text(os.path.join(folder, "env"))))
    secrets.add(in_script(script))
    secrets.learn(script)
    return secrets.masker()(script)


def text(path):
    """The beginning of a file, empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(FILE_BYTES)
    except OSError:
        return ""


def sha256(path):
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def mode(path):
    try:
        return f"{os.stat(path).st_mode & 0o7777:04o}"
    except OSError:
        return ""


def document(path):
    """The object in a JSON file; None where there is none, or a broken one."""
    return parsed(text(path))


def parsed(line):
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def aged(path):
    """A JSON file and how many seconds ago it was written."""
    found = document(path)
    try:
        return found and {**found, "age_s": max(0.0, time.time() - os.path.getmtime(path))}
    except OSError:
        return None


def last_line(path):
    """The last whole line of a file of JSON lines; one that was cut while it was written is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((found for line in reversed(lines) if (found := parsed(line))), None)


def derived(docker, container):
    """What the build of a derived image has noted in it, such as patches that were there already; None for others."""
    if "vllm-spark.inputs" not in container["labels"]:
        return None
    try:
        packed = docker.raw(f"/containers/{container['id']}/archive?path=/etc/vllm-spark/derived.json")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            return parsed(archive.extractfile("derived.json").read(FILE_BYTES))
    except (DockerError, tarfile.TarError, KeyError, AttributeError):
        return None


def first_look(address):
    """The engine's counters now; None where it does not tell. `at` is this Spark's monotonic clock."""
    if not address or not {"address", "port"} <= address.keys():
        return None
    connection = http.client.HTTPConnection(address["address"], address["port"], timeout=METRICS_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        at = time.monotonic()
        reply = connection.getresponse()
        said = reply.read(METRICS_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return {**counted(said), "at": at} if reply.status == http.client.OK else None


def counted(said):
    """The metrics that are asked for, added up over the engines; those that it does not have are missing."""
    found = {}
    for name, value in METRIC.findall(said):
        if name in METRICS:
            found[METRICS[name]] = found.get(METRICS[name], 0.0) + float(value)
    return found


def second_look(address, before):
    """The counters once more, where requests run: their difference is the speed now. None where nothing runs."""
    if not before or not before.get("running"):
        return None
    time.sleep(max(0.0, BETWEEN_S - (time.monotonic() - before["at"])))
    return first_look(address)
