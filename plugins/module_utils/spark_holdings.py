"""The toolkit's objects on a host: deployments, images, files, units. Reads only.

A file of the toolkit identifies itself in its first lines. A name alone identifies only what is in the toolkit's own
folders.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils import spark_host_layout as layout
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_docker import Docker, DockerError, identity
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_object, read_text, run
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launches import launches
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import history_entries
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_shared_blobs import unlinked

# Below the root of the host, which tests choose.
CONFIG, STATE, RUN = (folder.lstrip("/") for folder in (layout.CONFIG_DIR, layout.STATE_DIR, layout.RUN_DIR))
UNITS, PROGRAMS, BIN = layout.UNIT_DIR.lstrip("/"), layout.PROGRAM_DIR.lstrip("/"), "usr/local/bin"
HISTORY = layout.HISTORY_DIR.lstrip("/")
# First lines of a unit of the toolkit, and the name that its programs contain.
WRITTEN, MARK = b"Written by vllm-spark", b"vllm-spark"
HEAD_BYTES = 1024
# Containers of a transfer.
OWN = "vllm-spark-"
UNIT_PATTERNS = (
    "vllm@*.service",
    "vllm-liveness@*",
    "vllm-gave-up@*",
    "vllm-notify.*",
    "vllm-lease.*",
    "vllm-metrics*",
    "vllm-spark-pull-*.service",
    layout.SWITCH_UNIT,
    layout.EDGE_UNIT,
    layout.EDGE_ROUTE_UNIT,
    "vllm-edge-end.*",
    "vllm-edge-quota.*",
    layout.EDGE_SWITCH_UNIT,
    "vllm-switch-root*",
    layout.FIREWALL_UNIT,
)
TIMERS = (layout.NOTIFY_TIMER, layout.LEASE_TIMER)
# The folder of the edge below CONFIG, and its account.
EDGE, ACCOUNT = os.path.basename(layout.EDGE_DIR), layout.EDGE_GROUP
PULLED, PACKAGES = layout.PULLED.lstrip("/"), layout.PACKAGES.lstrip("/")


def size(path: str) -> int:
    """Return the bytes of a file or a folder on the disk; a file with several hard links counts once."""
    inodes, total = set(), 0
    for folder, _, names in os.walk(path) if os.path.isdir(path) and not os.path.islink(path) else [("", [], [path])]:
        for name in [folder, *(os.path.join(folder, name) for name in names)]:
            try:
                stat = os.lstat(name)
            except OSError:
                continue  # removed in the meantime, or the empty name of a file's folder
            if (stat.st_dev, stat.st_ino) not in inodes:
                inodes.add((stat.st_dev, stat.st_ino))
                total += stat.st_blocks * 512
    return total


def sized(paths: Iterable[str], count: bool) -> list[dict[str, Any]]:
    return [{"path": path, "bytes": size(path) if count else 0} for path in sorted(paths)]


def is_own(path: str, mark: bytes) -> bool:
    """Return True if a file contains the mark in its head, or if a link leads to the toolkit's programs."""
    try:
        if os.path.islink(path):
            return f"/{PROGRAMS}/" in os.readlink(path)
        with open(path, "rb") as file:
            return mark in file.read(HEAD_BYTES)
    except OSError:
        return False


def inside(folder: str) -> list[str]:
    """Return the paths in a folder; none if the folder does not exist."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []


def deployments(root: str, count: bool) -> dict[str, dict[str, Any]]:
    return {
        os.path.basename(folder): {
            "folder": folder,
            "launches": launches(folder),
            "mounts": sized(inside(os.path.join(folder, "mounts")), count),
        }
        for folder in inside(os.path.join(root, CONFIG))
        # The folder of the edge is no deployment.
        if os.path.isdir(folder) and os.path.basename(folder) != EDGE
    }


def history(root: str) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of the history by deployment; of each the keys that identify an image, and its judgement."""
    kept = ("image", "digest", "derived", "time", "launch", "holds", "gates")
    histories: dict[str, list[dict[str, Any]]] = {}
    for path in glob.glob(os.path.join(root, HISTORY, "*.jsonl")):
        name = os.path.basename(path).removesuffix(".jsonl")
        histories[name] = [{key: entry[key] for key in kept if key in entry} for entry in history_entries(path)]
    return histories


def pulled(root: str) -> list[str]:
    """Return the images that pulls have brought to this host, by digest."""
    return recorded(root, PULLED)


def packages(root: str) -> list[str]:
    """Return the packages of the distribution that deploys have installed on this host."""
    return recorded(root, PACKAGES)


def recorded(root: str, path: str) -> list[str]:
    """Return the lines of a record."""
    lines = (read_text(os.path.join(root, path)) or "").splitlines()
    return sorted({line.strip() for line in lines} - {""})


def unit_files(root: str) -> tuple[list[str], list[str]]:
    """Return (unit files, drop-ins and links of the toolkit, those of others beside them)."""
    folder = os.path.join(root, UNITS)
    # A link of `systemctl enable` leads to the template, which may be removed already.
    links = [
        link
        for name in ("vllm@*.service", layout.EDGE_UNIT, layout.FIREWALL_UNIT, *TIMERS, "vllm-metrics*")
        for link in glob.glob(os.path.join(folder, "*.wants", name))
    ]
    files = [
        *glob.glob(os.path.join(folder, "vllm*")),
        *glob.glob(os.path.join(folder, "vllm*.d", "*")),
    ]
    files = [path for path in files if os.path.isfile(path) and not os.path.islink(path)]
    own = [path for path in files if is_own(path, WRITTEN)]
    return sorted([*links, *own]), sorted(path for path in files if path not in own)


def units() -> dict[str, str]:
    """Return the toolkit's units that systemd has loaded: name -> ActiveState. A unit that is only wanted is none:
    vllm-edge.service wants vllm-edge-switch.service, which few Sparks have."""
    result = run("systemctl", "list-units", "--all", "--plain", "--no-legend", *UNIT_PATTERNS)
    rows = [line.split() for line in result.output.splitlines()] if result.status == 0 else []
    rows = [row for row in rows if len(row) > 3]  # noqa: PLR2004  name, loaded, active, sub
    return {row[0]: row[2] for row in rows if row[1:3] != ["not-found", "inactive"]}


def accounts(root: str) -> list[str]:
    """Return the system accounts of the toolkit that exist, as users or groups."""
    files = (read_text(os.path.join(root, "etc", name)) or "" for name in ("passwd", "group"))
    return [ACCOUNT] if any(line.startswith(f"{ACCOUNT}:") for text in files for line in text.splitlines()) else []


def docker_holdings() -> dict[str, Any]:
    holdings: dict[str, Any] = {"error": "", "images": [], "containers": []}
    try:
        docker = Docker()
        holdings["images"] = [image(entry, docker) for entry in docker.get("/images/json?shared-size=1")]
        holdings["containers"] = [container(entry) for entry in docker.get("/containers/json?all=1")]
    except DockerError as error:
        return {**holdings, "error": str(error)}
    return holdings


def image(entry: dict[str, Any], docker: Docker) -> dict[str, Any]:
    """Return an image's names and sizes. `own`: the bytes that no other image shares, as far as this engine counts
    them. `identity` is read of derived images alone: those of a pair are compared. Raises DockerError."""
    shared = entry.get("SharedSize", -1)
    derived = layout.INPUTS_LABEL in (entry.get("Labels") or {})
    document = docker.get(f"/images/{entry['Id']}/json", missing_ok=True) if derived else None
    return {
        "id": entry["Id"],
        "identity": identity("", document) if document else "",
        "tags": [name for name in entry.get("RepoTags") or [] if not name.startswith("<none>")],
        "digests": [name for name in entry.get("RepoDigests") or [] if not name.startswith("<none>")],
        "labels": {
            name: value for name, value in (entry.get("Labels") or {}).items() if name.startswith("vllm-spark.")
        },
        "bytes": entry["Size"],
        "own": entry["Size"] - shared if shared >= 0 else entry["Size"],
    }


def container(entry: dict[str, Any]) -> dict[str, Any]:
    name = (entry.get("Names") or [entry["Id"]])[0].lstrip("/")
    return {
        "name": name,
        "image_id": entry["ImageID"],
        "image": entry["Image"],
        "state": entry["State"],
        "ours": layout.DEPLOYMENT_LABEL in (entry.get("Labels") or {}) or name.startswith(OWN),
    }


def holdings(root: str = "/", count: bool = True) -> dict[str, Any]:
    """Return every object of the toolkit. With `count` also the sizes, which needs the metadata of every file."""
    own, others = unit_files(root)
    return {
        "deployments": deployments(root, count),
        "history": history(root),
        "states": [
            path
            for folder in (layout.STATES_DIR, layout.STARTS_DIR)
            for path in inside(os.path.join(root, folder.lstrip("/")))
        ],
        "lease": read_object(os.path.join(root, layout.LEASE.lstrip("/"))),
        "pulled": pulled(root),
        "packages": packages(root),
        "docker": docker_holdings(),
        "units": units(),
        "unit_files": own,
        "unit_files_of_others": others,
        "programs": [
            *filter(os.path.isdir, [os.path.join(root, PROGRAMS)]),
            *(path for path in sorted(glob.glob(os.path.join(root, BIN, "vllm*"))) if is_own(path, MARK)),
        ],
        "run": sized(inside(os.path.join(root, RUN)), False),
        "config": os.path.join(root, CONFIG) if os.path.isdir(os.path.join(root, CONFIG)) else "",
        "state": sized(inside(os.path.join(root, STATE)), count),
        "builds": sized(inside(os.path.join(root, layout.BUILD_DIR.lstrip("/"))), count),
        "models": sized(
            [path for path in inside(os.path.join(root, STATE, "hub")) if "models--" in os.path.basename(path)], count
        ),
        "shared_blobs": sized([str(file) for file in unlinked(Path(root, STATE, "hub"))], count),
        "caches": sized(inside(os.path.join(root, STATE, "cache")), count),
        "accounts": accounts(root),
    }
