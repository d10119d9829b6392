"""The state of a deployment on its Spark: the words, and how they are read. state_writer.py writes them.

/run/vllm-spark/NAME/state.json has the present, /var/lib/vllm-spark/states/NAME.jsonl the transitions, one a line.
plugins/module_utils/spark_deployment_state.py is a link to this file. Standard library alone.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypedDict

# It shall run and does not load yet: after a boot, or a rank that waits for its peer.
WANTED = "wanted"
LOADING = "loading"
SERVING = "serving"
# Its last requests end, then it is stopped.
DRAINING = "draining"
# On purpose.
STOPPED = "stopped"
# It has ended by a fault, and starts again.
FAILED = "failed"
# It does not start again before a person acts.
GAVE_UP = "gave up"
# It stays down while its memory is lent to another program (lease.py), and comes back by itself.
LENT = "lent"
STATES = (WANTED, LOADING, SERVING, DRAINING, STOPPED, FAILED, GAVE_UP, LENT)
# It serves, or will serve without a person.
ACTIVE = (WANTED, LOADING, SERVING, FAILED)

# Three reasons begin so. By them vllm-notify knows an engine that liveness has ended, a start that died twice, and a
# lease whose memory does not come back.
HUNG = "it hung"
NOT_STARTED = "not started at boot"
LEASE_OVER = "its lease has ended"

KEPT_LINES = 200
# Most characters of a reason, and bytes of a file that are read.
REASON_LENGTH = 400
MAX_BYTES = 1 << 20

_WANTED_WHY = "it starts with this Spark, and has not started yet"
_NEVER_WHY = "it is not started"


class State(TypedDict):
    """What a deployment does on this Spark.

    - `since`: epoch seconds of the last change of `state`; 0 if it is not written
    - `why`: the reason of the state; may be empty
    - `last_end`: why the server ended the last time; empty if it has not
    - `peers`: the other Sparks of a deployment; empty for a server of one Spark
    - `start`: the id of its start (starts.py), and `failed` how many starts in a row have failed
    - `written`: False for a state that no program has written since the boot
    """

    state: str
    why: str
    since: float
    last_end: str
    peers: list[str]
    start: str
    failed: int
    written: bool


class Transition(TypedDict):
    """A line of the history. `time` is in epoch seconds."""

    time: float
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of the states. Tests have others. `wants`: has a link to each unit that starts with the Spark."""

    run: str = "/run/vllm-spark"
    histories: str = "/var/lib/vllm-spark/states"
    wants: str = "/etc/systemd/system/multi-user.target.wants"
    config: str = "/etc/vllm-spark"
    starts: str = "/var/lib/vllm-spark/starts"

    def present(self, name: str) -> str:
        return os.path.join(self.run, name, "state.json")

    def history(self, name: str) -> str:
        return os.path.join(self.histories, f"{name}.jsonl")

    def starts_of(self, name: str) -> str:
        return os.path.join(self.starts, f"{name}.json")

    @property
    def map(self) -> str:
        """The file by which the edge knows every state."""
        return os.path.join(self.run, "states.map")

    def deployments(self) -> list[str]:
        """Return the deployments that are placed on this Spark."""
        return sorted(path.split(os.sep)[-2] for path in glob.glob(os.path.join(self.config, "*", "launch")))

    def starts_with_boot(self, name: str) -> bool:
        return os.path.islink(os.path.join(self.wants, f"vllm@{name}.service"))


PLACES = Places()


def clean(reason: str, length: int = REASON_LENGTH) -> str:
    """Return a text that is safe to print: every control, format and surrogate character becomes a question mark, and
    the text ends after `length` characters."""
    shown = "".join(character if character.isprintable() else "?" for character in reason[:length])
    return shown if len(reason) <= length else f"{shown} …"


def present(name: str, places: Places = PLACES) -> State:
    """Return the state of a deployment that is placed on this Spark. One that no program has written since the boot is
    wanted if it starts with the Spark and had not given up before, and stopped if it does not. So is one whose file is
    broken."""
    if written := parsed(text(places.present(name))):
        return written
    state, why = (WANTED, _WANTED_WHY) if places.starts_with_boot(name) else (STOPPED, _NEVER_WHY)
    count = json_object(text(places.starts_of(name))).get("count")
    if state == WANTED and isinstance(count, dict) and count.get("gave_up"):
        state, why = GAVE_UP, clean(str(count["gave_up"]))
    return State(state=state, why=why, since=0.0, last_end="", peers=[], start="", failed=0, written=False)


def parsed(content: str) -> State | None:
    """Return the state in the text of a state.json, or None if it has none of these states."""
    document = json_object(content)
    since = number(document.get("since"))
    if document.get("state") not in STATES or since is None:
        return None
    why, last_end, peer, start = (str(document.get(key) or "") for key in ("why", "last_end", "peer", "start"))
    # Release 0.1.0 has written one peer, and no start.
    peers = document.get("peers", [peer] if peer else [])
    return State(
        state=document["state"],
        why=why,
        since=since,
        last_end=last_end,
        peers=[str(one) for one in peers] if isinstance(peers, list) else [],
        start=start,
        failed=int(number(document.get("failed")) or 0),
        written=True,
    )


def history(name: str, places: Places = PLACES, last: int = KEPT_LINES) -> list[Transition]:
    """Return the last transitions, the oldest first. A line that a loss of power has cut off is left out."""
    return list(transitions(text(places.history(name)).splitlines()))[-last:] if last else []


def transitions(lines: Iterable[str]) -> Iterable[Transition]:
    """Yield the transition of each line that is whole."""
    for line in lines:
        entry = json_object(line)
        time = number(entry.get("time"))
        if entry.get("state") in STATES and time is not None:
            yield Transition(time=time, state=entry["state"], why=str(entry.get("why") or ""))


def described(state: State) -> str:
    """Return a state with its reason, and the reason of the last end where the state does not give it."""
    why = f": {state['why']}" if state["why"] else ""
    ended = state["last_end"] if state["state"] in (WANTED, LOADING) and state["last_end"] != state["why"] else ""
    return f"{state['state']}{why}" + (f"; before that: {ended}" if ended else "")


def text(path: str) -> str:
    """Return the last MAX_BYTES of a file, empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def json_object(content: str) -> dict[str, Any]:
    """Return the object in a JSON text; empty for another text."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def number(value: object) -> float | None:
    """Return a number. JSON may have NaN and infinity, and True is no number."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return float(value) if good else None  # type: ignore[arg-type]
