"""Differences between the commands of two launches, for the operator who chooses between them. Pure.
plugins/module_utils/spark_launch_difference.py is a link to this file. Standard library alone.

A command is the list of its lines in the launch script: an option with its values is one line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

# Lines that differ between any two launches: the fingerprint as a label, and for the supervisor of a pair.
FINGERPRINT = re.compile(r"(?:--label vllm-spark\.launch=|--launch |echo 'vllm-spark: launch )")
# The variables of the waits of a start: vLLM envs.py, huggingface_hub constants.py, Ray common/ray_config_def.h.
_WAITS = "VLLM_ENGINE_READY_TIMEOUT_S|HF_HUB_DOWNLOAD_TIMEOUT|HF_HUB_ETAG_TIMEOUT|RAY_raylet_start_wait_time_s"
# Lines that only a start reads, with what an operator calls them: its waits, what is done before the engine starts, and
# the memory that it leaves to the host. A server that serves is the same with another value, so it is not restarted.
OF_START = {
    "": re.compile(rf"--env (?:{_WAITS})="),
    "vllm_swap_off": re.compile(r"swapoff --all$"),
    "vllm_drop_caches": re.compile(r"(?:sync|echo 3 >/proc/sys/vm/drop_caches)$"),
    "the memory that the host keeps": re.compile(r"memory=\$\("),
}
# Options that occur once for each name, and where that name is.
NAMED = (re.compile(r"(--(?:env|label|ulimit)) ([^=]+)="), re.compile(r"(--mount) .*\btarget=([^,]+)"))
IMAGE = re.compile(r"(?:.*?/)?((?:derived/)?[^/:@]+)(?::[^/:@]+)?(?:@sha256)?:([0-9a-f]{12})[0-9a-f]*$")
# What follows from other changes, or says less, comes after them.
LAST = ("image", "--mount", "--label")
MOST = 4
SAME = "the same command"


def lines(script: str) -> list[str]:
    """Return the lines of a launch script that run, without indents and line continuations."""
    stripped = (line.strip().removesuffix("\\").strip() for line in script.splitlines())
    return [line for line in stripped if line and not line.startswith("#")]


def command(script: str) -> list[str]:
    """Return the lines of the command that a launch script executes at its end."""
    return lines(script.partition("\nexec ")[2])


def standing(script: str) -> str:
    """Return the hash of what the server of a launch is: the lines that run, without those that only a start reads and
    without the fingerprint."""
    left_out = (FINGERPRINT, *OF_START.values())
    kept = [line for line in lines(script) if not any(pattern.match(line) for pattern in left_out)]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def of_start(script: str) -> list[str]:
    """Return the lines of a launch that only a start reads."""
    return [line for line in lines(script) if any(pattern.match(line) for pattern in OF_START.values())]


def next_start(current: Sequence[str], target: Sequence[str]) -> list[str]:
    """Return what the next start does in another way. Both are lines that only a start reads."""
    changed = [line for line in (*current, *target) if (line in current) != (line in target)]
    names = [name for name, pattern in OF_START.items() if name and any(pattern.match(line) for line in changed)]
    waits = ([line for line in of if OF_START[""].match(line)] for of in (current, target))
    return [*differences(*waits), *names]


def differences(current: Sequence[str], target: Sequence[str]) -> list[str]:
    """Return what a change from `current` to `target` does, as texts of the form `--flag old → new`."""
    old = {_key(line): line for line in current if line not in target and not FINGERPRINT.match(line)}
    new = {_key(line): line for line in target if line not in current and not FINGERPRINT.match(line)}
    keys = sorted(dict.fromkeys([*old, *new]), key=_rank)
    return [_change(key, old, new) for key in keys]


def summary(current: Sequence[str], target: Sequence[str]) -> str:
    """Return the first differences in one line, and the number of further ones."""
    if not current or not target:
        return "the commands cannot be compared"
    return listed(differences(current, target))


def listed(changes: Sequence[str]) -> str:
    """Return the first of some differences in one line, and the number of further ones."""
    more = [f"{len(changes) - MOST} more"] if len(changes) > MOST else []
    return "; ".join([*changes[:MOST], *more]) or SAME


def _rank(key: str) -> int:
    option = key.partition(" ")[0]
    return LAST.index(option) + 1 if option in LAST else 0


def _key(line: str) -> str:
    for pattern in NAMED:
        if match := pattern.match(line):
            return f"{match[1]} {match[2]}"
    if line.startswith("-"):
        return line.partition(" ")[0]
    return "image" if "@sha256:" in line or re.fullmatch(r"\S+:\S+", line) else line.partition(" ")[0]


def _change(key: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    values = [_value(key, lines[key]) for lines in (old, new) if key in lines]
    if len(values) > 1:
        return f"{key} {_pair(*values)}"
    return f"{' '.join([key, *values]).strip()} is {'removed' if key in old else 'added'}"


def _pair(old: str, new: str) -> str:
    """Return `old → new`: of two images of one repository, and of two mounts, only what differs."""
    images = [IMAGE.match(value) for value in (old, new)]
    if images[0] and images[1]:
        names, digits = zip(*(image.groups() for image in images if image), strict=True)
        both = [f"{names[0]} {digits[0]}", digits[1] if names[0] == names[1] else f"{names[1]} {digits[1]}"]
        return " → ".join(both)
    parts = old.split(","), new.split(",")
    only = [[part for part in own if part not in other] for own, other in (parts, parts[::-1])]
    if all(len(own) == 1 and own[0].startswith("source=") for own in only):
        return " → ".join(own[0].removeprefix("source=") for own in only)
    return f"{old} → {new}"


def _value(key: str, line: str) -> str:
    """Return a line without what its key has said already."""
    option = key.partition(" ")[0]
    return (line.removeprefix(key) if line.startswith(key) else line.removeprefix(option)).lstrip(" =")
