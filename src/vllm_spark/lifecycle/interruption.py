"""The line that ends a run after Ctrl-C: the state of the hosts, what continues there, and the next command. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_spark.core.units import clock

EXIT_STATUS = 130  # 128 + SIGINT, as shells report it

SAME = "the same command again continues"
# Printed if a verb runs once more by itself, because its changes of the server are not meant to stay.
PUTS_BACK = "The server is put back as the inventory describes it. Ctrl-C again leaves it as it is."


@dataclass(frozen=True, slots=True)
class AfterCtrlC:
    """What an interrupted verb leaves: what continues on the hosts, and the command that continues or undoes it."""

    continues: str
    command: str


READS = frozenset({"collect", "history", "lock", "plan", "precheck", "status", "verify"})
# The verbs that change a host. docs/operations describes how each of them continues.
VERBS: Mapping[str, AfterCtrlC] = {
    "deploy": AfterCtrlC(
        "a server that was started goes on loading, and no gate judges it", f"{SAME}, rollback.yml undoes"
    ),
    "switch": AfterCtrlC(
        "a Spark that has stopped a server finishes its switch", f"{SAME}, switch.yml -e to=NAME goes back"
    ),
    "rollback": AfterCtrlC("a server that was restarted goes on loading", f"{SAME} in the same direction"),
    "pull": AfterCtrlC(
        "what has arrived is kept; a transfer that has begun ends by itself or with the next pull", SAME
    ),
    "fabric": AfterCtrlC(
        "settings that were not confirmed are taken back by the Spark's own timer", f"{SAME} or reports what is set"
    ),
    "remove": AfterCtrlC("what was removed is gone", SAME),
    "prune": AfterCtrlC("what was removed is gone", SAME),
    "bench": AfterCtrlC("a measurement that runs on a Spark goes on, and its cells are kept", SAME),
    "stop": AfterCtrlC("a server that was told to stop ends", f"{SAME}, deploy.yml starts the servers again"),
}


def line(verb: str, task: str, seconds: float, changes: Mapping[str, int], *, check: bool) -> str:
    """Return the line for a verb that was interrupted in a task. `changes` counts the changing tasks of each host; a
    task that was running is not counted."""
    begun = f"Interrupted: {verb} ended after {clock(seconds)}" + (f" in '{task}'" if task else "")
    again = "Fix: run the same command again."
    if check or verb in READS or not changes:
        return f"{begun}. It has changed no host, and nothing continues there. {again}"
    left = VERBS.get(verb, AfterCtrlC("a task that has begun on a host may still end there", SAME))
    changed = [f"{host} by {number} task{'s' * (number > 1)}" for host, number in changes.items() if number]
    seen = f"Changed so far: {', '.join(changed)}" if changed else f"No finished task has changed {', '.join(changes)}"
    return f"{begun}. {seen}; {left.continues}. Fix: {left.command}; status.yml shows the state."
