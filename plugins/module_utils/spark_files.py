"""Launches of a deployment on its host, as numbered generations. In the folder of the deployment:

    launches/N               the files of one launch; `previous` in it is a link to the launch before, a lower number;
                             launch.deployed is its launch as it was deployed, whatever an editor makes of the other
    current -> launches/N    what runs
    launch -> current/launch, and so on for every file; previous -> current/previous
    failed -> launches/M     the last launch that failed its gates
    swapping -> launches/N   during a manual rollback, until the gates have judged the launch that was restored

A change prepares whole generations, and then replaces the link `current` by one rename. A host that loses its power at
any point has the old or the new launch, and no mixture.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_host_layout import (
    CURRENT,
    FAILED,
    LAUNCHES,
    PREVIOUS,
    SWAPPING,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    mode_of,
    read_text,
    sha256,
    write_file,
)
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_records import record_of
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_secrets import env_pairs
from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_state_file import TEMPORARY, sync

# The files that make one launch repeatable. Mounted files have their checksum in their name, so those of an earlier
# launch remain.
DEPLOYMENT_FILES = ("launch", "env", "liveness.json", "gates.json", "deployed.json")
# The launch of a generation as it was deployed, beside one that somebody may edit by hand.
ORIGINAL = "launch.deployed"
# The key of an open server, which anyone may use that reaches a server without one.
ENGINE_KEY = "VLLM_API_KEY"
# Prefixes of what an interrupted run has left, the last three of an older toolkit.
UNFINISHED = (TEMPORARY, f".{PREVIOUS}-", f".{FAILED}-", f".{SWAPPING}-")


def install(folder: str, files: Iterable[Mapping[str, str]], keep_as: str = "", *, unedit: bool = False) -> None:
    """Make a launch current that has these files (path, content, mode), and the others of the current launch. `keep_as`
    is the name of the launch that it replaces: previous, failed, or empty if the launch stays the same. `unedit`: that
    one is kept as it was deployed, if that is known, because an edit by hand never ran."""
    current = adopt(folder)
    if unedit and (deployed := original(folder)):
        path = os.path.join(current, "launch")
        write_file(path, read_text(deployed) or "", mode_of(path))
    settle(folder)
    if keep_as == FAILED and current:
        point(folder, FAILED, current)
    fresh = generation(folder, current)
    for file in files:
        write_file(os.path.join(fresh, os.path.basename(file["path"])), file["content"], file["mode"])
    keep_original(fresh, os.path.join(fresh, "launch"))
    follow(fresh, current if keep_as == PREVIOUS else before(current))
    activate(folder, fresh)


def restore_previous(folder: str, env: str) -> list[str]:
    """Make the previous launch current and the current one failed. Does nothing without a previous launch.

    `env` and the result are those of `renew`."""
    current = adopt(folder)
    previous = before(current)
    if not previous:
        return []
    gone = renew(previous, env)
    point(folder, FAILED, current)
    activate(folder, previous)
    return gone


def swap(folder: str, env: str) -> list[str]:
    """Exchange the current and the previous launch. The link `swapping` remains until settle.

    `env` and the result are those of `renew`."""
    current = adopt(folder)
    replaced, restored = generation(folder, current), generation(folder, before(current))
    gone = renew(restored, env)
    follow(replaced, before(before(current)))
    follow(restored, replaced)
    deployed, path = record_of(restored), os.path.join(restored, "deployed.json")
    deployed[PREVIOUS] = {name: value for name, value in record_of(current).items() if name != PREVIOUS}
    write_file(path, json.dumps(deployed, indent=2, sort_keys=True) + "\n", mode_of(path))
    point(folder, SWAPPING, restored)
    activate(folder, restored)
    return gone


def renew(place: str, env: str) -> list[str]:
    """Let a launch that returns have today's values of its secrets, those of the env file `env`: a rollback restores
    none. One without a value is left out, except for the key of an open server, which becomes one that nobody knows.

    Returns the names without a value."""
    path = os.path.join(place, "env")
    old, today = read_text(path) or "", dict(env_pairs(env))
    names = dict(env_pairs(old))
    gone = [name for name in names if not today.get(name)]
    kept = {name: today[name] for name in names if name not in gone}
    if ENGINE_KEY in gone:
        kept[ENGINE_KEY] = secrets.token_urlsafe(32)
    comments = [line for line in old.splitlines() if line.startswith("#")]
    fresh = "".join(f"{line}\n" for line in [*comments, *(f"{name}={value}" for name, value in kept.items())])
    if names and kept != names:
        write_file(path, fresh, mode_of(path))
    return gone


def original(folder: str) -> str:
    """Return the path of the current launch as it was deployed; empty if that is unknown."""
    current = os.path.realpath(os.path.join(folder, CURRENT))
    deployed = record_of(current).get("launch_sha256")
    paths = [os.path.join(current, name) for name in (ORIGINAL, "launch")]
    return next((path for path in paths if deployed and os.path.isfile(path) and sha256(path) == deployed), "")


def keep_original(fresh: str, path: str) -> None:
    """Keep the launch at a path beside that of a generation, if it is the one that the generation's record has."""
    if os.path.isfile(path) and sha256(path) == record_of(fresh).get("launch_sha256"):
        write_file(os.path.join(fresh, ORIGINAL), read_text(path) or "", "0644")


def settle(folder: str) -> None:
    """End a rollback, because the gates have judged the restored launch."""
    remove(os.path.join(folder, SWAPPING))


def save(folder: str, kept: str) -> bool:
    """Copy the launches to the folder `kept`, in place of an earlier copy. Ends a rollback. Returns True."""
    adopt(folder)
    settle(folder)
    remove(kept)
    os.makedirs(kept)
    for name in (LAUNCHES, CURRENT, FAILED):
        path, copy = os.path.join(folder, name), os.path.join(kept, name)
        if os.path.islink(path):
            os.symlink(os.readlink(path), copy)
        elif os.path.isdir(path):
            shutil.copytree(path, copy, symlinks=True)
    return True


def put_back(folder: str, kept: str) -> bool:
    """Let the current launch, which is the saved one deployed again, have the record of the saved one, and make those
    before it and the failed one what they were. Removes the copy. Returns False if there is none."""
    current = adopt(folder)
    if not os.path.isdir(os.path.join(kept, LAUNCHES)):
        return False
    for number in os.listdir(os.path.join(kept, LAUNCHES)):
        if not os.path.exists(os.path.join(folder, LAUNCHES, number)):
            shutil.copytree(os.path.join(kept, LAUNCHES, number), os.path.join(folder, LAUNCHES, number), symlinks=True)
    saved = os.path.realpath(os.path.join(kept, CURRENT))
    record = os.path.join(saved, "deployed.json")
    write_file(os.path.join(current, "deployed.json"), read_text(record) or "", mode_of(record))
    remove(os.path.join(current, PREVIOUS))
    if previous := before(saved):
        os.symlink(os.path.join(os.pardir, os.path.basename(previous)), os.path.join(current, PREVIOUS))
    remove(os.path.join(folder, FAILED))
    if os.path.isdir(os.path.join(kept, FAILED)):
        point(folder, FAILED, os.path.realpath(os.path.join(kept, FAILED)))
    activate(folder, current)
    remove(kept)
    return True


def adopt(folder: str) -> str:
    """Return the current generation; empty if there is none. First completes what an interruption has left."""
    for name in os.listdir(folder):
        if name.startswith(UNFINISHED):
            remove(os.path.join(folder, name))
    if any(is_real(os.path.join(folder, name)) for name in DEPLOYMENT_FILES):
        take_over(folder)
    if not os.path.isdir(os.path.join(folder, CURRENT)):
        return ""
    tidy(folder)
    return os.path.realpath(os.path.join(folder, CURRENT))


def take_over(folder: str) -> None:
    """Make generations of files that an older toolkit has placed, with previous/ as a folder, or that an editor has put
    in the place of a link. What the names in the folder lead to is what runs."""
    top = os.path.join(folder, SWAPPING) if is_real(os.path.join(folder, SWAPPING)) else folder
    places = [os.path.join(top, PREVIOUS, PREVIOUS), os.path.join(top, PREVIOUS), top]
    if record_of(top) and record_of(top) == record_of(os.path.join(top, PREVIOUS)):
        places.pop()  # an older toolkit was interrupted while it replaced the files of this launch, one by one
    fresh = ""
    for place in places:
        if os.path.exists(os.path.join(place, "launch")):
            earlier, fresh = fresh, generation(folder, place)
            if place == top == folder and (deployed := original(folder)):
                keep_original(fresh, deployed)
            follow(fresh, earlier)
    if fresh:
        activate(folder, fresh)


def generation(folder: str, source: str) -> str:
    """Return a new generation with the files of `source`; an empty one if `source` is empty."""
    launches = os.path.join(folder, LAUNCHES)
    os.makedirs(launches, exist_ok=True)
    fresh = os.path.join(launches, str(1 + max(map(int, os.listdir(launches)), default=0)))
    os.mkdir(fresh)
    for name in (*DEPLOYMENT_FILES, ORIGINAL):
        if source and os.path.isfile(os.path.join(source, name)):
            # With its modification time: a new one of the env file would restart the engine.
            shutil.copy2(os.path.join(source, name), fresh)
            sync(os.path.join(fresh, name))
    return fresh


def follow(fresh: str, previous: str) -> None:
    """Let a new generation follow a previous one. One with the same launch is left out: a launch between the two has
    failed."""
    if previous and record_of(fresh).get("launch", "") == record_of(previous).get("launch"):
        previous = before(previous)
    if previous:
        os.symlink(os.path.join(os.pardir, os.path.basename(previous)), os.path.join(fresh, PREVIOUS))


def before(place: str) -> str:
    """Return the generation before another one; empty if there is none."""
    path = os.path.realpath(os.path.join(place, PREVIOUS))
    return path if place and os.path.isdir(path) else ""


def activate(folder: str, fresh: str) -> None:
    """Make a complete generation current, in one step."""
    if not os.path.lexists(os.path.join(folder, PREVIOUS)):
        point(folder, PREVIOUS)
    point(folder, CURRENT, fresh)
    tidy(folder)


def tidy(folder: str) -> None:
    """Let the names in the folder lead to the current generation, and remove the generations that no name leads to."""
    current = os.path.join(folder, CURRENT)
    for name in (*DEPLOYMENT_FILES, PREVIOUS):
        if not os.path.exists(os.path.join(current, name)):
            remove(os.path.join(folder, name))
        elif not os.path.islink(os.path.join(folder, name)):
            point(folder, name)
    used = (current, f"{current}/{PREVIOUS}", f"{current}/{PREVIOUS}/{PREVIOUS}", f"{folder}/{FAILED}")
    kept = [os.path.basename(os.path.realpath(path)) for path in (*used, os.path.join(folder, SWAPPING))]
    for number in os.listdir(os.path.join(folder, LAUNCHES)):
        if number not in kept:
            remove(os.path.join(folder, LAUNCHES, number))


def point(folder: str, name: str, target: str = "") -> None:
    """Let a name in the folder be a link to a generation, or to the current file of that name, in one step."""
    path, fresh = os.path.join(folder, name), os.path.join(folder, f"{TEMPORARY}{name}")
    os.symlink(os.path.join(LAUNCHES, os.path.basename(target)) if target else os.path.join(CURRENT, name), fresh)
    aside = os.path.join(folder, f"{TEMPORARY}{name}-folder")
    if os.path.isdir(path) and is_real(path):
        os.replace(path, aside)  # of an older toolkit
    os.replace(fresh, path)
    remove(aside)


def is_real(path: str) -> bool:
    """Return True if there is a file or folder, and not a link."""
    return os.path.lexists(path) and not os.path.islink(path)


def remove(path: str) -> None:
    if os.path.isdir(path) and is_real(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
