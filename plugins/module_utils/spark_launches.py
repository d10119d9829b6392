"""The launches on a host and what they need there, read from the launch scripts, which are there if nothing else is."""

from __future__ import annotations

import os
import re
import shlex
from itertools import pairwise
from typing import Any, TypedDict

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_files import DEPLOYMENT_FILES
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_host_layout import (
    CURRENT,
    FAILED,
    PREVIOUS,
    SWAPPING,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import read_text, sha256
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_launch_difference import command
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_readable import first_outside
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import gates_of, record_of
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import Secrets, env_pairs, in_argv

# Name of a launch -> its folder below that of the deployment, whose own names lead to the current launch.
KEPT = {
    CURRENT: "",
    PREVIOUS: PREVIOUS,
    f"{PREVIOUS}/{PREVIOUS}": os.path.join(PREVIOUS, PREVIOUS),
    FAILED: FAILED,
    SWAPPING: SWAPPING,
}
# The folders of models and of caches inside a container of the launch.
HUB, CACHE = "/hub/", "/cache"
SNAPSHOT = re.compile(r"/hub/(models--[^/\"\s]+)/snapshots/([0-9a-f]{40})")
SUPERVISE = "/supervise"
# So many broken links of a folder are named.
MAX_NAMED = 3


class Needs(TypedDict):
    """The paths on the host that a launch mounts: `snapshots` of models, `models`, `files` and its `cache`. `pair`: it
    is one of several ranks. `peers`: the hosts of the others, without those of a launch of release 0.1.0."""

    snapshots: list[str]
    models: list[str]
    files: list[str]
    cache: str
    pair: bool
    peers: list[str]


class Launch(TypedDict):
    """One launch of a deployment. `path_faults` has a sentence for each missing path. `command` has the lines of its
    command, with secrets masked. `edited`: the script is not the one that was deployed; None if that is unknown.
    `secrets` are the names in its env file."""

    record: dict[str, Any]
    command: list[str]
    edited: bool | None
    runnable: bool
    gates: bool
    secrets: list[str]
    needs: Needs
    path_faults: list[str]


def argv_of(script: str) -> list[str]:
    """Return the argv that a launch script executes at its end; empty if the text is not such a script."""
    _, separator, command = script.partition("\nexec ")
    try:
        return shlex.split(command.replace("\\\n", " ")) if separator else []
    except ValueError:
        return []


def command_lines(script: str) -> list[str]:
    """Return the lines of the command of a launch, secrets masked."""
    secrets = Secrets()
    secrets.add(in_argv(argv_of(script)))
    return command(secrets.masker()(script))


def commands(folder: str) -> dict[str, list[str]]:
    """Return the lines of the commands of the launches in a deployment's folder, by the fingerprint of the launch."""
    places = [os.path.join(folder, below) for below in KEPT.values()]
    texts = {str(record_of(place).get("launch", "")): read_text(os.path.join(place, "launch")) for place in places}
    return {launch: lines for launch, text in texts.items() if launch and (lines := command_lines(text or ""))}


def edited(folder: str) -> bool | None:
    """Return True if a launch script is not the one that its record describes. None without such a record."""
    recorded, path = record_of(folder).get("launch_sha256"), os.path.join(folder, "launch")
    return sha256(path) != recorded if recorded and os.path.isfile(path) else None


def needs(script: str) -> Needs:
    """Return what a launch needs on its host."""
    argv = argv_of(script)
    mounts: dict[str, str] = {}
    for option, value in pairwise(argv):
        if option == "--mount":
            parts: dict[str, str] = dict(part.partition("=")[::2] for part in value.split(","))
            mounts[parts.get("target", "")] = parts.get("source", "")
    snapshots = dict.fromkeys(match for argument in argv for match in SNAPSHOT.findall(argument))
    return {
        "snapshots": [
            f"{mounts[HUB + folder]}/snapshots/{commit}" for folder, commit in snapshots if HUB + folder in mounts
        ],
        "models": sorted(source for target, source in mounts.items() if target.startswith(HUB)),
        "files": sorted(source for target, source in mounts.items() if not f"{target}/".startswith((HUB, CACHE + "/"))),
        "cache": mounts.get(CACHE, ""),
        "pair": bool(argv) and argv[0].endswith(SUPERVISE),
        "peers": [value for option, value in pairwise(argv) if option == "--peer-host"],
    }


def path_fault(path: str) -> str:
    """Return why an engine cannot read a folder or file, or an empty text. Files of a hub cache are links into its
    blobs/."""
    if os.path.isfile(path):
        return ""
    if not os.path.isdir(path):
        return f"{path} does not exist"
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    if not files:
        return f"{path} is empty"
    broken = [os.path.relpath(name, path) for name in sorted(files) if not os.path.exists(name)]
    more = f" and {len(broken) - MAX_NAMED} more" if len(broken) > MAX_NAMED else ""
    if broken:
        return f"{path}: {', '.join(broken[:MAX_NAMED])}{more} lead nowhere"
    outside = first_outside(path)
    return f"{outside} leads out of the model's folder, which alone an engine gets" if outside else ""


def launches(folder: str) -> dict[str, Launch]:
    """Return the launches in a deployment's folder, by their names in KEPT."""
    result: dict[str, Launch] = {}
    for name, below in KEPT.items():
        place = os.path.join(folder, below)
        if not any(os.path.exists(os.path.join(place, file)) for file in DEPLOYMENT_FILES):
            continue
        script = read_text(os.path.join(place, "launch")) or ""
        needed = needs(script)
        result[name] = {
            "record": record_of(place),
            "command": command_lines(script),
            "edited": edited(place),
            "runnable": bool(argv_of(script)),
            "gates": bool(gates_of(place)),
            "secrets": [name for name, _ in env_pairs(read_text(os.path.join(place, "env")) or "")],
            "needs": needed,
            "path_faults": [why for path in (*needed["snapshots"], *needed["files"]) if (why := path_fault(path))],
        }
    return result
