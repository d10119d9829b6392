"""Files of a deployment on its box: placed atomically, kept, and brought back."""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile

# What makes one launch repeatable. Mounted files carry their checksum in their name, so those of a launch before stay.
# deployed.json says what the others are, so it is placed last.
DEPLOYMENT_FILES = ("launch", "env", "liveness.json", "gates.json", "deployed.json")
PREVIOUS, FAILED = "previous", "failed"


def place(path, content, mode):
    """Replace a file so that a reader sees the old or the new one, also after a loss of power."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".vllm-spark-")
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
    previous/ so far is kept inside, one deep: a launch that comes back has the one before it again."""
    fresh = tempfile.mkdtemp(dir=folder, prefix=f".{name}-")
    copy_files(folder, fresh)
    if name == PREVIOUS and os.path.isdir(os.path.join(folder, PREVIOUS)):
        os.mkdir(os.path.join(fresh, PREVIOUS), 0o700)
        copy_files(os.path.join(folder, PREVIOUS), os.path.join(fresh, PREVIOUS))
    swap_in(fresh, os.path.join(folder, name))


def bring_back(folder):
    """Place the files of previous/ again; what they replace goes to failed/. Cut off anywhere, the next run of this or
    of a deploy goes on from there: previous/ is given up last."""
    previous = os.path.join(folder, PREVIOUS)
    # A run that was cut off here has kept it already, and has begun to replace it.
    if not same_record(folder, os.path.join(folder, FAILED)):
        keep(folder, FAILED)
    for name in DEPLOYMENT_FILES:
        source = os.path.join(previous, name)
        if os.path.exists(source):
            with open(source, encoding="utf-8") as file:
                place(os.path.join(folder, name), file.read(), f"{os.stat(source).st_mode & 0o7777:04o}")
    before = os.path.join(previous, PREVIOUS)
    if os.path.isdir(before):
        fresh = tempfile.mkdtemp(dir=folder, prefix=f".{PREVIOUS}-")
        copy_files(before, fresh)
        swap_in(fresh, previous)
    else:
        shutil.rmtree(previous)


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
