"""What the toolkit has on a box: deployments, images, files, units, rules of the firewall. Reads only.

What is a file of the toolkit says so itself, in its first lines; nothing is taken for ours by its name alone but what
lies in the toolkit's own folders.
"""

from __future__ import annotations

import glob
import json
import os

from ansible.module_utils.spark_docker import Docker, DockerError
from ansible.module_utils.spark_host import run
from ansible.module_utils.spark_launches import launches

CONFIG, STATE, RUN = "etc/vllm-spark", "var/lib/vllm-spark", "run/vllm-spark"
UNITS, PROGRAMS, BIN = "etc/systemd/system", "usr/local/lib/vllm-spark", "usr/local/bin"
HISTORY = f"{STATE}/history"
# What the toolkit writes at the head of a unit, and what its programs say of themselves.
WRITTEN, MARK = b"Written by vllm-spark", b"vllm-spark"
HEAD_BYTES = 1024
LABEL = "vllm-spark.deployment"
# Containers and volumes of a transfer, and its relay.
OWN = "vllm-spark-"
UNIT_PATTERNS = (
    "vllm@*.service",
    "vllm-liveness@*",
    "vllm-spark-relay.*",
    "vllm-spark-pull-*.service",
    "vllm-switch.service",
)
CHAIN = "VLLM-SPARK"
FIREWALLS = ("iptables", "ip6tables")
# The images that a pull has brought, and where it leaves word while Docker finds a registry on the loopback device
# (src/vllm_spark/node/pull/image_pull.py).
PULLED = f"{STATE}/pulled"
PULL_JOURNAL, PULL_LINE = f"{STATE}/pull/daemon.json.before", "# vllm-spark: for one pull"


def size(path):
    """Bytes that a file or a folder has on the disk; what is linked twice counts once."""
    seen, total = set(), 0
    for folder, _, names in os.walk(path) if os.path.isdir(path) and not os.path.islink(path) else [("", (), [path])]:
        for name in [folder, *(os.path.join(folder, name) for name in names)]:
            try:
                found = os.lstat(name)
            except OSError:
                continue  # gone while we looked, or the empty name of a file's folder
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * 512
    return total


def sized(paths, count):
    return [{"path": path, "bytes": size(path) if count else 0} for path in sorted(paths)]


def says_it_is_ours(path, mark):
    try:
        if os.path.islink(path):
            return f"/{PROGRAMS}/" in os.readlink(path)
        with open(path, "rb") as file:
            return mark in file.read(HEAD_BYTES)
    except OSError:
        return False


def inside(folder):
    """The entries of a folder, none where there is no folder."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []


def deployments(root, count):
    found = {}
    for folder in inside(os.path.join(root, CONFIG)):
        if os.path.isdir(folder):
            found[os.path.basename(folder)] = {
                "folder": folder,
                "launches": launches(folder),
                "mounts": sized(inside(os.path.join(folder, "mounts")), count),
            }
    return found


def history(root):
    """What ran here before, by deployment: of each entry what an image is known by."""
    found = {}
    for path in glob.glob(os.path.join(root, HISTORY, "*.jsonl")):
        with open(path, encoding="utf-8", errors="replace") as file:
            entries = [json_line(line) for line in file]
        name = os.path.basename(path).removesuffix(".jsonl")
        found[name] = [
            {key: entry[key] for key in ("image", "digest", "derived") if key in entry} for entry in entries if entry
        ]
    return found


def pulled(root):
    """The images that a pull has brought here, by digest."""
    try:
        with open(os.path.join(root, PULLED), encoding="utf-8", errors="replace") as file:
            return sorted({line.strip() for line in file} - {""})
    except OSError:
        return []


def json_line(line):
    """The object in a line; empty for one that was cut off by a loss of power."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def unit_files(root):
    """(unit files, drop-ins and links that the toolkit has placed, those of others beside them)."""
    folder = os.path.join(root, UNITS)
    # A link of `systemctl enable` leads to the template, which may be gone already.
    links = glob.glob(os.path.join(folder, "*.wants", "vllm@*.service"))
    files = [
        *glob.glob(os.path.join(folder, "vllm*")),
        *glob.glob(os.path.join(folder, "vllm*.d", "*")),
    ]
    files = [path for path in files if os.path.isfile(path) and not os.path.islink(path)]
    own = [path for path in files if says_it_is_ours(path, WRITTEN)]
    return sorted([*links, *own]), sorted(path for path in files if path not in own)


def units():
    """The toolkit's units that systemd has loaded: name -> ActiveState."""
    status, said = run("systemctl", "list-units", "--all", "--plain", "--no-legend", *UNIT_PATTERNS)
    rows = [line.split() for line in said.splitlines()] if status == 0 else []
    return {row[0]: row[2] for row in rows if len(row) > 3}  # noqa: PLR2004  name, loaded, active, sub


def chains():
    """Those of the two firewalls that have the chain of a pair."""
    return [program for program in FIREWALLS if run(program, "--wait", "--list-rules", CHAIN)[0] == 0]


def pull_was_cut_off(root):
    """Are Docker's settings, or /etc/hosts, still those of one pull?"""
    try:
        with open(os.path.join(root, "etc/hosts"), encoding="utf-8", errors="replace") as file:
            named = PULL_LINE in file.read()
    except OSError:
        named = False
    return named or os.path.exists(os.path.join(root, PULL_JOURNAL))


def docker_holdings(count):
    found = {"error": "", "images": [], "containers": [], "volumes": []}
    try:
        docker = Docker()
        found["images"] = [image(entry) for entry in docker.get("/images/json?shared-size=1")]
        found["containers"] = [container(entry) for entry in docker.get("/containers/json?all=1")]
        volumes = docker.get("/volumes")["Volumes"] or []
    except DockerError as error:
        return {**found, "error": str(error)}
    found["volumes"] = [
        {"name": entry["Name"], "bytes": size(entry["Mountpoint"]) if count else 0}
        for entry in volumes
        if entry["Name"].startswith(OWN)
    ]
    return found


def image(entry):
    """Its names; `own` are the bytes that no other image shares, as far as this engine counts them."""
    shared = entry.get("SharedSize", -1)
    return {
        "id": entry["Id"],
        "tags": [name for name in entry.get("RepoTags") or [] if not name.startswith("<none>")],
        "digests": [name for name in entry.get("RepoDigests") or [] if not name.startswith("<none>")],
        "labels": {
            name: value for name, value in (entry.get("Labels") or {}).items() if name.startswith("vllm-spark.")
        },
        "bytes": entry["Size"],
        "own": entry["Size"] - shared if shared >= 0 else entry["Size"],
    }


def container(entry):
    name = (entry.get("Names") or [entry["Id"]])[0].lstrip("/")
    return {
        "name": name,
        "image_id": entry["ImageID"],
        "image": entry["Image"],
        "state": entry["State"],
        "ours": LABEL in (entry.get("Labels") or {}) or name.startswith(OWN),
    }


def holdings(root="/", count=True):
    """Everything; with `count` the sizes, which take a look at every file."""
    own, others = unit_files(root)
    return {
        "deployments": deployments(root, count),
        "history": history(root),
        "pulled": pulled(root),
        "docker": docker_holdings(count),
        "units": units(),
        "unit_files": own,
        "unit_files_of_others": others,
        "programs": [
            *filter(os.path.isdir, [os.path.join(root, PROGRAMS)]),
            *(path for path in sorted(glob.glob(os.path.join(root, BIN, "vllm*"))) if says_it_is_ours(path, MARK)),
        ],
        "run": sized(inside(os.path.join(root, RUN)), False),
        "config": os.path.join(root, CONFIG) if os.path.isdir(os.path.join(root, CONFIG)) else "",
        "state": sized(inside(os.path.join(root, STATE)), count),
        "builds": sized(inside(os.path.join(root, STATE, "build")), count),
        "models": sized(
            [path for path in inside(os.path.join(root, STATE, "hub")) if "models--" in os.path.basename(path)], count
        ),
        "caches": sized(inside(os.path.join(root, STATE, "cache")), count),
        "chains": chains(),
        "pull_was_cut_off": pull_was_cut_off(root),
    }
