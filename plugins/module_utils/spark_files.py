"""Files of a deployment on its host: kept, restored, and exchanged with those of the launch before."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import tempfile
from typing import Any

from ansible_collections.vllm_spark.toolkit.plugins.module_utils.spark_io import (
    TEMPORARY,
    mode_of,
    read_object,
    write_file,
)

# The files that make one launch repeatable. Mounted files have their checksum in their name, so those of an earlier
# launch remain. deployed.json describes the others, so it is placed last.
DEPLOYMENT_FILES = ("launch", "env", "liveness.json", "gates.json", "deployed.json")
PREVIOUS, FAILED = "previous", "failed"
# The folder in its future state, while an operator's rollback is in progress. A run that finds it continues with it.
SWAPPING = "swapping"

# A folder that is not complete yet, and (-old) a folder that was moved aside while another takes its place.
UNFINISHED = re.compile(rf"\.(?P<of>{PREVIOUS}|{FAILED}|{SWAPPING})-\w+?(?P<aside>-old)?$")


def keep_current(folder: str, name: str) -> None:
    """Copy a deployment's current files to the folder `name` below it, which is moved into place as a whole. The files
    of previous/ are kept inside it, one level deep: a launch that is restored has the one before it again. An
    interrupted rollback is completed first; otherwise files of two launches would be kept as one."""
    remove_unfinished(folder)
    finish_swap(folder)
    settle_swap(folder)
    # The files of an interrupted run may be of two launches, and the complete launch is kept already.
    if (name == PREVIOUS and replacement_started(folder)) or same_record(folder, os.path.join(folder, name)):
        return
    fresh = tempfile.mkdtemp(dir=folder, prefix=f".{name}-")
    copy_files(folder, fresh)
    if name == PREVIOUS and os.path.isdir(os.path.join(folder, PREVIOUS)):
        os.mkdir(os.path.join(fresh, PREVIOUS), 0o700)
        copy_files(os.path.join(folder, PREVIOUS), os.path.join(fresh, PREVIOUS))
    move_into_place(fresh, os.path.join(folder, name))


def replacement_started(folder: str) -> bool:
    """Return True if an interrupted run has started to replace the current files.

    The current files may then be of two launches, and the last complete launch is kept already: the record equals that
    of previous/. If a launch was being restored, the record still equals that of failed/ while the launch, which is
    placed first, equals that of previous/ already."""
    previous, failed = os.path.join(folder, PREVIOUS), os.path.join(folder, FAILED)
    current_launch, previous_launch, failed_launch = (
        os.path.join(place, "launch") for place in (folder, previous, failed)
    )
    half_restored = (
        same_record(folder, failed)
        and same_file(current_launch, previous_launch)
        and not same_file(current_launch, failed_launch)
    )
    return half_restored or same_record(folder, previous)


def restore_previous(folder: str) -> None:
    """Place the files of previous/ again and keep the files that they replace in failed/. After an interruption at any
    point, the next restore or deploy continues from there: previous/ is removed last."""
    previous = os.path.join(folder, PREVIOUS)
    remove_unfinished(folder)
    finish_swap(folder)
    settle_swap(folder)
    keep_current(folder, FAILED)
    place_all(previous, folder)
    promote_before(folder)


def drop_repeated(folder: str) -> None:
    """Remove previous/ if it holds the current launch: a bad launch between the two went to failed/."""
    place = os.path.join(folder, PREVIOUS)
    current, previous = (read_object(os.path.join(path, "deployed.json")) or {} for path in (folder, place))
    if current.get("launch") and current["launch"] == previous.get("launch"):
        promote_before(folder)


def promote_before(folder: str) -> None:
    """Replace previous/ by the launch before it, which is kept inside it; remove it if there is none."""
    previous = os.path.join(folder, PREVIOUS)
    before = os.path.join(previous, PREVIOUS)
    if os.path.isdir(before):
        fresh = tempfile.mkdtemp(dir=folder, prefix=f".{PREVIOUS}-")
        copy_files(before, fresh)
        move_into_place(fresh, previous)
    else:
        shutil.rmtree(previous)


def remove_unfinished(folder: str) -> None:
    """Repair what a loss of power has left. A folder that was moved aside returns to its place, unless its successor is
    there. Incomplete files and folders are removed, and secrets of an env file with them."""
    for name in sorted(os.listdir(folder)):
        path, unfinished = os.path.join(folder, name), UNFINISHED.match(name)
        if name.startswith(TEMPORARY):
            os.unlink(path)
        elif unfinished and unfinished["aside"] and not os.path.isdir(os.path.join(folder, unfinished["of"])):
            os.rename(path, os.path.join(folder, unfinished["of"]))
        elif unfinished:
            shutil.rmtree(path)


def place_all(source: str, target: str) -> None:
    """Place the files of one folder in another. Files that are equal already are not written, because a new
    modification time means a change."""
    for name in DEPLOYMENT_FILES:
        path, destination = os.path.join(source, name), os.path.join(target, name)
        if os.path.exists(path) and not same_file(path, destination):
            with open(path, encoding="utf-8") as file:
                write_file(destination, file.read(), mode_of(path))


def swap(folder: str) -> None:
    """Exchange the current files with those of previous/. The future state of the folder is prepared first and gets its
    name in one step. After an interruption from then on, finish_swap continues. The prepared folder remains until
    settle_swap."""
    previous = os.path.join(folder, PREVIOUS)
    fresh = tempfile.mkdtemp(dir=folder, prefix=f".{SWAPPING}-")
    copy_files(previous, fresh)
    set_previous_record(fresh, read_object(os.path.join(folder, "deployed.json")) or {})
    for source, name in ((folder, PREVIOUS), (os.path.join(previous, PREVIOUS), os.path.join(PREVIOUS, PREVIOUS))):
        if os.path.isdir(source):
            os.mkdir(os.path.join(fresh, name), 0o700)
            copy_files(source, os.path.join(fresh, name))
    move_into_place(fresh, os.path.join(folder, SWAPPING))
    finish_swap(folder)


def finish_swap(folder: str) -> None:
    """Place the files that swap has prepared. Does nothing if no swap is in progress."""
    swapping = os.path.join(folder, SWAPPING)
    if not os.path.isdir(swapping):
        return
    place_all(swapping, folder)
    for name in DEPLOYMENT_FILES:
        # An older toolkit placed fewer files; a file that remained would describe the other launch.
        if not os.path.exists(os.path.join(swapping, name)) and os.path.exists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    fresh = tempfile.mkdtemp(dir=folder, prefix=f".{PREVIOUS}-")
    shutil.copytree(os.path.join(swapping, PREVIOUS), fresh, dirs_exist_ok=True)
    move_into_place(fresh, os.path.join(folder, PREVIOUS))


def settle_swap(folder: str) -> None:
    """Remove the prepared folder, because the gates have judged the restored launch."""
    shutil.rmtree(os.path.join(folder, SWAPPING), ignore_errors=True)


def set_previous_record(folder: str, record: dict[str, Any]) -> None:
    """Write `record` into a folder's deployed.json as that of the launch before."""
    path = os.path.join(folder, "deployed.json")
    deployed = read_object(path)
    if deployed and record:
        deployed["previous"] = {name: value for name, value in record.items() if name != "previous"}
        write_file(path, json.dumps(deployed, indent=2, sort_keys=True) + "\n", mode_of(path))


def same_file(one: str, other: str) -> bool:
    try:
        return filecmp.cmp(one, other, shallow=False) and os.stat(one).st_mode == os.stat(other).st_mode
    except FileNotFoundError:
        return False


def same_record(one: str, other: str) -> bool:
    try:
        return filecmp.cmp(os.path.join(one, "deployed.json"), os.path.join(other, "deployed.json"), shallow=False)
    except FileNotFoundError:
        return False


def copy_files(source: str, target: str) -> None:
    for name in DEPLOYMENT_FILES:
        if os.path.exists(os.path.join(source, name)):
            shutil.copy2(os.path.join(source, name), target)


def move_into_place(fresh: str, place: str) -> None:
    """Rename a folder to its place. The old folder is moved aside, not removed first: an interruption here must not
    lose it."""
    old = f"{fresh}-old"
    if os.path.isdir(place):
        os.rename(place, old)
    os.rename(fresh, place)
    shutil.rmtree(old, ignore_errors=True)
