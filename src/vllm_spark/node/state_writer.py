"""Writes the state of a deployment where it changes: the unit, the supervisor of a pair, liveness, vllm-switch.

Standard library alone. A reader never sees a part of a state. That a history or an edge cannot be written does not fail
the caller, because a model server that runs is worth more; the journal has a warning.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vllm_spark.node import deployment_state, edge_admin, host_layout, lease, starts, state_file
from vllm_spark.node.deployment_state import (
    DRAINING,
    FAILED,
    KEPT_LINES,
    LENT,
    LOADING,
    SERVING,
    WANTED,
    Places,
    State,
    Transition,
    clean,
)
from vllm_spark.node.starts import Record


@dataclass(frozen=True, slots=True)
class StateOf:
    """The state of one deployment, for the programs that change it."""

    name: str
    places: Places

    def write(
        self,
        state: str,
        why: str = "",
        *,
        after: Collection[str] = (),
        start: str | None = None,
        peers: Sequence[str] | None = None,
    ) -> State:
        """Write a state, and its line in the history. Returns the state that is written now.

        `after` and `start`: write it only if the present state is one of these, and of this start, because another
        program may know more by now. `peers` stay as they are without any. Raises OSError if the present cannot be
        written.
        """
        os.makedirs(os.path.join(self.places.run, self.name), mode=0o700, exist_ok=True)
        with state_file.alone(_lock(self.places)):
            old = deployment_state.present(self.name, self.places)
            if not may_follow(old, after, start):
                return old
            new = following(old, state, clean(why), peers, starts.read(self.name, self.places))
            if new != old:
                document = {key: value for key, value in new.items() if key != "written"}
                path = self.places.present(self.name)
                state_file.replace_file(path, json.dumps(document) + "\n", durable=False)
                _append(self.name, Transition(time=time.time(), state=new["state"], why=new["why"]), self.places)
                _write_map(self.places)
            # The edge has the end of a lease, which can change.
            if (new["state"], new["why"]) != (old["state"], old["why"]) or not old["written"]:
                self._tell(new)
        return new

    def _tell(self, new: State) -> None:
        """Tell of a transition, in the order in which they are written. Who hears it can neither fail nor hold up the
        writer."""
        edge_admin.set_state(self.places.map, self.name, word(new["state"], self.places))


def write_map(places: Places) -> None:
    """Write the file by which the edge knows every state. Raises OSError."""
    os.makedirs(places.run, mode=0o755, exist_ok=True)
    with state_file.alone(_lock(places)):
        _write_map(places)


def _write_map(places: Places) -> None:
    """Write `deployment state` lines. A restarted edge reads them; a running one is told each change."""
    states = {name: deployment_state.present(name, places)["state"] for name in places.deployments()}
    lines = [f"{name} {word(state, places)}\n" for name, state in states.items()]
    state_file.replace_file(places.map, "".join(lines), durable=False)


def word(state: str, places: Places) -> str:
    """Return a state as the edge has it, without a space: `lent` with the end of the lease in epoch seconds."""
    until = lease.read(places) if state == LENT else None
    return f"{LENT}_{until.until:.0f}" if until else state.replace(" ", "_")


def operator(places: Places) -> str:
    """Return who holds this Spark with a verb (plugins/module_utils/spark_lock.py), empty for nobody."""
    path = os.path.join(places.run, host_layout.LOCK)
    if not os.path.exists(path):
        return ""
    holder = deployment_state.json_object(deployment_state.text(path))
    who = f"{holder.get('user', 'somebody')}@{holder.get('controller', 'unknown')}"
    return f"{who} with {holder.get('verb', 'a verb')}"


def may_follow(old: State, after: Collection[str], start: str | None) -> bool:
    """Return True if a state may replace this one: see StateOf.write. One that nobody has written always may be."""
    of_another = start is not None and old["start"] != start
    return not old["written"] or not ((after and old["state"] not in after) or of_another)


def following(old: State, state: str, why: str, peers: Sequence[str] | None, record: Record) -> State:
    """Return the state that follows another one. `record` has the start to which it belongs."""
    same = old["written"] and old["state"] == state
    # What has loaded or served and is only wanted now has ended, and the reason says why.
    ended = state == FAILED or (state == WANTED and old["state"] in (LOADING, SERVING, DRAINING))
    return State(
        state=state,
        why=why,
        since=old["since"] if same else time.time(),
        last_end=why if ended and why else old["last_end"],
        peers=old["peers"] if peers is None else list(peers),
        start=record.id,
        failed=len(record.count.failures),
        written=True,
    )


def _append(name: str, entry: Transition, places: Places) -> None:
    """Append a line to the history, and keep KEPT_LINES of it. A state that it ends with already adds no line, such as
    that of before a boot."""
    kept = deployment_state.history(name, places)
    if kept and (kept[-1]["state"], kept[-1]["why"]) == (entry["state"], entry["why"]):
        return
    lines = "".join(json.dumps(one) + "\n" for one in [*kept, entry][-KEPT_LINES:])
    loss = f"the history of deployment {name} lacks its state {entry['state']}"
    state_file.replace_or_warn(places.history(name), lines, loss)


def _lock(places: Places) -> str:
    return os.path.join(places.run, "states.lock")
