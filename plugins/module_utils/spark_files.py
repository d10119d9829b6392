"""Files of a deployment on its box: placed atomically, kept, brought back, and exchanged with those of before."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import tempfile

# What makes one launch repeatable. Mounted files carry their checksum in their name, so those of a launch before stay.
# deployed.json says what the others are, so it is placed last.
DEPLOYMENT_FILES = ("launch", "env", "liveness.json", "gates.json", "deployed.json")
PREVIOUS, FAILED = "previous", "failed"
# While a person's rollback is under way: the folder as it is going to be. Whoever finds it goes on from there.
SWAPPING = "swapping"

# What is not whole yet, and a folder that is moved aside while another takes its place.
TEMPORARY = ".vllm-spark-"
UNFINISHED = re.compile(rf"\.(?P<of>{PREVIOUS}|{FAILED}|{SWAPPING})-\w+?(?P<aside>-old)?$")


def place(path, content, mode):
    """Replace a file so that a reader sees the old or the new one, also after a loss of power."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, int(mode, 8))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def keep(folder, name):
    """Copy a deployment's current files to the folder `name` below it, which is swapped in whole. What was kept as
    previous/ so far is kept inside, one deep: a launch that comes back has the one before it again. A rollback that was
    cut off is carried through first, or files of two launches would be kept as one."""
    mend(folder)
    finish_swap(folder)
    settle_swap(folder)
    if name == PREVIOUS and begun_before(folder):
        return
    fresh = tempfile.mkdtemp(dir=folder, prefix=f".{name}-")
    copy_files(folder, fresh)
    if name == PREVIOUS and os.path.isdir(os.path.join(folder, PREVIOUS)):
        os.mkdir(os.path.join(fresh, PREVIOUS), 0o700)
        copy_files(os.path.join(folder, PREVIOUS), os.path.join(fresh, PREVIOUS))
    swap_in(fresh, os.path.join(folder, name))


def begun_before(folder):
    """Has a run that was cut off begun to replace the current files? They may be of two launches then, and what was
    whole before is kept already: the record is that of previous/, or, where a launch was being taken back, the record
    is still that of failed/ while the launch, which is placed first, is that of previous/ again."""
    previous, failed = os.path.join(folder, PREVIOUS), os.path.join(folder, FAILED)
    mine, before, missed = (os.path.join(place, "launch") for place in (folder, previous, failed))
    half_back = same_record(folder, failed) and same_file(mine, before) and not same_file(mine, missed)
    return half_back or same_record(folder, previous)


def bring_back(folder):
    """Place the files of previous/ again; what they replace goes to failed/. Cut off anywhere, the next run of this or
    of a deploy goes on from there: previous/ is given up last."""
    previous = os.path.join(folder, PREVIOUS)
    mend(folder)
    finish_swap(folder)
    settle_swap(folder)
    # A run that was cut off here has kept it already, and has begun to replace it.
    if not same_record(folder, os.path.join(folder, FAILED)):
        keep(folder, FAILED)
    place_all(previous, folder)
    before = os.path.join(previous, PREVIOUS)
    if os.path.isdir(before):
        fresh = tempfile.mkdtemp(dir=folder, prefix=f".{PREVIOUS}-")
        copy_files(before, fresh)
        swap_in(fresh, previous)
    else:
        shutil.rmtree(previous)


def mend(folder):
    """Put right what a loss of power has left half done: a folder that was moved aside has its place again, unless its
    successor has it, and what nobody finished goes, secrets of an env file with it."""
    for name in sorted(os.listdir(folder)):
        path, unfinished = os.path.join(folder, name), UNFINISHED.match(name)
        if name.startswith(TEMPORARY):
            os.unlink(path)
        elif unfinished and unfinished["aside"] and not os.path.isdir(os.path.join(folder, unfinished["of"])):
            os.rename(path, os.path.join(folder, unfinished["of"]))
        elif unfinished:
            shutil.rmtree(path)


def place_all(source, target):
    """Place the files of one folder in another, but for those that are the same already; their times would say that
    they had changed."""
    for name in DEPLOYMENT_FILES:
        path, there = os.path.join(source, name), os.path.join(target, name)
        if os.path.exists(path) and not same_file(path, there):
            with open(path, encoding="utf-8") as file:
                place(there, file.read(), f"{os.stat(path).st_mode & 0o7777:04o}")


def swap(folder):
    """Exchange the current files with those of previous/. The folder as it is going to be is made first and gets its
    name in one step; from then on, cut off anywhere, finish_swap goes on. It stays until settle_swap."""
    previous = os.path.join(folder, PREVIOUS)
    fresh = tempfile.mkdtemp(dir=folder, prefix=f".{SWAPPING}-")
    copy_files(previous, fresh)
    say_what_was_before(fresh, document(os.path.join(folder, "deployed.json")))
    for source, name in ((folder, PREVIOUS), (os.path.join(previous, PREVIOUS), os.path.join(PREVIOUS, PREVIOUS))):
        if os.path.isdir(source):
            os.mkdir(os.path.join(fresh, name), 0o700)
            copy_files(source, os.path.join(fresh, name))
    swap_in(fresh, os.path.join(folder, SWAPPING))
    finish_swap(folder)


def finish_swap(folder):
    """Place what swap has prepared; nothing happens where nothing is under way."""
    swapping = os.path.join(folder, SWAPPING)
    if not os.path.isdir(swapping):
        return
    place_all(swapping, folder)
    for name in DEPLOYMENT_FILES:
        # A toolkit before this one placed fewer files; one that stays would tell of the other launch.
        if not os.path.exists(os.path.join(swapping, name)) and os.path.exists(os.path.join(folder, name)):
            os.unlink(os.path.join(folder, name))
    fresh = tempfile.mkdtemp(dir=folder, prefix=f".{PREVIOUS}-")
    shutil.copytree(os.path.join(swapping, PREVIOUS), fresh, dirs_exist_ok=True)
    swap_in(fresh, os.path.join(folder, PREVIOUS))


def settle_swap(folder):
    """The launch that came back has been judged: nothing is under way any more."""
    shutil.rmtree(os.path.join(folder, SWAPPING), ignore_errors=True)


def say_what_was_before(folder, record):
    """Have the record in a folder name the launch that it follows now."""
    path = os.path.join(folder, "deployed.json")
    said = document(path)
    if said and record:
        said["previous"] = {name: value for name, value in record.items() if name != "previous"}
        place(path, json.dumps(said, indent=2, sort_keys=True) + "\n", f"{os.stat(path).st_mode & 0o7777:04o}")


def document(path):
    """The object in a JSON file; empty where there is none, or a broken one."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def same_file(one, other):
    try:
        return filecmp.cmp(one, other, shallow=False) and os.stat(one).st_mode == os.stat(other).st_mode
    except FileNotFoundError:
        return False


def same_record(one, other):
    try:
        return filecmp.cmp(os.path.join(one, "deployed.json"), os.path.join(other, "deployed.json"), shallow=False)
    except FileNotFoundError:
        return False


def copy_files(source, target):
    for name in DEPLOYMENT_FILES:
        if os.path.exists(os.path.join(source, name)):
            shutil.copy2(os.path.join(source, name), target)


def swap_in(fresh, place_of):
    """Give a folder its place. Moved aside, not removed first: a run that is cut off here must not cost the old one."""
    old = f"{fresh}-old"
    if os.path.isdir(place_of):
        os.rename(place_of, old)
    os.rename(fresh, place_of)
    shutil.rmtree(old, ignore_errors=True)
