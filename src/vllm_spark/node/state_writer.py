"""Writes the state of a deployment where it changes: the unit, the supervisor of a pair, liveness, vllm-switch.

Standard library alone. A reader never sees a part of a state. That a history or an edge cannot be written does not fail
the caller, because a model server that runs is worth more; the journal has a warning.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_spark.node import deployment_state, edge_admin, host_layout, state_file
from vllm_spark.node.deployment_state import FAILED, KEPT_LINES, Places, State, Transition, clean


@dataclass(frozen=True, slots=True)
class StateOf:
    """The state of one deployment, for the programs that change it."""

    name: str
    places: Places

    def write(self, state: str, why: str = "", *, after: Collection[str] = (), peer: str | None = None) -> State:
        """Write a state, and its line in the history. Returns the state that is written now.

        `after`: write it only if the present state is one of these, because another program may know more by now.
        `peer` stays as it is without one. Raises OSError if the present cannot be written.
        """
        os.makedirs(os.path.join(self.places.run, self.name), mode=0o700, exist_ok=True)
        with _alone(self.places):
            old = deployment_state.present(self.name, self.places)
            if after and old["written"] and old["state"] not in after:
                return old
            new = _next(old, state, clean(why), peer)
            if new != old:
                document = {key: value for key, value in new.items() if key != "written"}
                path = self.places.present(self.name)
                state_file.replace_file(path, json.dumps(document) + "\n", durable=False)
                _append(self.name, Transition(time=time.time(), state=new["state"], why=new["why"]), self.places)
                _write_map(self.places)
        if new["state"] != old["state"] or not old["written"]:
            edge_admin.set_state(self.places.map, self.name, word(state))
        return new


def write_map(places: Places) -> None:
    """Write the file by which the edge knows every state. Raises OSError."""
    os.makedirs(places.run, mode=0o755, exist_ok=True)
    with _alone(places):
        _write_map(places)


def _write_map(places: Places) -> None:
    """Write `deployment state` lines. A restarted edge reads them; a running one is told each change."""
    lines = [f"{name} {word(deployment_state.present(name, places)['state'])}\n" for name in places.deployments()]
    state_file.replace_file(places.map, "".join(lines), durable=False)


def word(state: str) -> str:
    """Return a state as the edge has it, without a space."""
    return state.replace(" ", "_")


def operator(places: Places) -> str:
    """Return who holds this Spark with a verb (plugins/module_utils/spark_lock.py), empty for nobody."""
    path = os.path.join(places.run, host_layout.LOCK)
    if not os.path.exists(path):
        return ""
    holder = deployment_state.json_object(deployment_state.text(path))
    who = f"{holder.get('user', 'somebody')}@{holder.get('controller', 'unknown')}"
    return f"{who} with {holder.get('verb', 'a verb')}"


def _next(old: State, state: str, why: str, peer: str | None) -> State:
    same = old["written"] and old["state"] == state
    return State(
        state=state,
        why=why,
        since=old["since"] if same else time.time(),
        last_end=why if state == FAILED else old["last_end"],
        peer=old["peer"] if peer is None else peer,
        written=True,
    )


def _append(name: str, entry: Transition, places: Places) -> None:
    """Append a line to the history, and keep KEPT_LINES of it. A state that it ends with already adds no line, such as
    that of before a boot."""
    path = Path(places.history(name))
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        kept = deployment_state.history(name, places)
        if kept and (kept[-1]["state"], kept[-1]["why"]) == (entry["state"], entry["why"]):
            return
        lines = "".join(json.dumps(one) + "\n" for one in [*kept, entry][-KEPT_LINES:])
        state_file.replace_file(path, lines)
    except OSError as error:
        warn(f"the history of deployment {name} lacks its state {entry['state']}: {error}")


def warn(text: str) -> None:
    """Print a line that the journal keeps as a warning (<4>)."""
    with contextlib.suppress(OSError):
        print(f"<4>vllm-spark: {clean(text)}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _alone(places: Places) -> Iterator[None]:
    """Let one program at a time read and write states."""
    with open(os.path.join(places.run, "states.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
