"""What the launches on a box need of it, read from the launches themselves: they are there when nothing else is."""

from __future__ import annotations

import os
import re
import shlex

from ansible.module_utils.spark_files import DEPLOYMENT_FILES, FAILED, PREVIOUS, SWAPPING, document

# The current one is the folder itself.
CURRENT = "current"
KEPT = {
    CURRENT: "",
    PREVIOUS: PREVIOUS,
    f"{PREVIOUS}/{PREVIOUS}": os.path.join(PREVIOUS, PREVIOUS),
    FAILED: FAILED,
    SWAPPING: SWAPPING,
}
# What the launch calls the folders of models and of caches inside its container.
HUB, CACHE = "/hub/", "/cache"
SNAPSHOT = re.compile(r"/hub/(models--[^/\"\s]+)/snapshots/([0-9a-f]{40})")
SUPERVISE = "/supervise"
NAMED = 3


def words(text):
    """The words that a launch script runs at its end; none where it is no such script."""
    _, found, command = text.partition("\nexec ")
    try:
        return shlex.split(command.replace("\\\n", " ")) if found else []
    except ValueError:
        return []


def needs(text):
    """What a launch needs on its box: the snapshots and files that it mounts, its cache, and whether it is a pair's."""
    said = words(text)
    mounts = {}
    for option, value in zip(said, said[1:]):  # noqa: B905, RUF007  a box's Python may be older than both
        if option == "--mount":
            parts = dict(part.partition("=")[::2] for part in value.split(","))
            mounts[parts.get("target", "")] = parts.get("source", "")
    named = dict.fromkeys(pair for word in said for pair in SNAPSHOT.findall(word))
    return {
        "snapshots": [
            f"{mounts[HUB + folder]}/snapshots/{commit}" for folder, commit in named if HUB + folder in mounts
        ],
        "models": sorted(source for target, source in mounts.items() if target.startswith(HUB)),
        "files": sorted(source for target, source in mounts.items() if not f"{target}/".startswith((HUB, CACHE + "/"))),
        "cache": mounts.get(CACHE, ""),
        "pair": bool(said) and said[0].endswith(SUPERVISE),
        "peer": next((value for option, value in zip(said, said[1:]) if option == "--peer-host"), ""),  # noqa: B905, RUF007
    }


def lacking(path):
    """Why a folder or file cannot be read by an engine, or nothing. A hub's files are links into its blobs/."""
    if os.path.isfile(path):
        return ""
    if not os.path.isdir(path):
        return f"{path} does not exist"
    files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    if not files:
        return f"{path} is empty"
    lost = [os.path.relpath(name, path) for name in sorted(files) if not os.path.exists(name)]
    more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
    return f"{path}: {', '.join(lost[:NAMED])}{more} lead nowhere" if lost else ""


def launches(folder):
    """The launches that a deployment's folder holds, by where: the record, what it needs and what of that is not
    there, and whether its gates are known."""
    found = {}
    for where, below in KEPT.items():
        place = os.path.join(folder, below)
        if not any(os.path.exists(os.path.join(place, name)) for name in DEPLOYMENT_FILES):
            continue
        try:
            with open(os.path.join(place, "launch"), encoding="utf-8") as file:
                text = file.read()
        except OSError:
            text = ""
        wanted = needs(text)
        found[where] = {
            "record": document(os.path.join(place, "deployed.json")),
            "runnable": bool(words(text)),
            "gates": bool(document(os.path.join(place, "gates.json"))),
            "needs": wanted,
            "lacking": [why for path in (*wanted["snapshots"], *wanted["files"]) if (why := lacking(path))],
        }
    return found
