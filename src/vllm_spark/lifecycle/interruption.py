"""The line that ends a run after Ctrl-C: the state of the hosts, what continues there, and the next command. Pure.

A verb that consists of others names its parts, and that one in which it has failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from vllm_spark.core.run_command import typed
from vllm_spark.core.units import clock

EXIT_STATUS = 130  # 128 + SIGINT, as shells report it

SAME = "the same command again continues"
# Printed if a verb runs once more by itself, because its changes of the server are not meant to stay.
PUTS_BACK = "The server is put back as the inventory describes it. Ctrl-C again leaves it as it is."


@dataclass(frozen=True, slots=True)
class AfterCtrlC:
    """What an interrupted verb leaves: what continues on the hosts, the command that continues it, and, if one does,
    the command that undoes it."""

    continues: str
    command: str = SAME
    undo: str = ""

    def to_json(self) -> dict[str, str]:
        """Return it as an action returns it, by the key `if_interrupted`: from then on it holds on that host."""
        return asdict(self)


def of_start(to: str, stops: Sequence[str], returns: Sequence[str], otherwise: str) -> AfterCtrlC:
    """Return what an interrupted start of a deployment leaves. `stops` has what ends for it, `returns` those of them
    that a switch brings back. `otherwise` undoes it without any of these."""
    ends = f"{' and '.join(stops)} {'stop' if len(stops) > 1 else 'stops'} for {to}; " if stops else ""
    back = ", ".join(f"`ansible-playbook switch.yml -e to={name}` brings {name} back" for name in returns)
    return AfterCtrlC(f"{ends}{to} goes on loading if it was started, and no gate judges it", undo=back or otherwise)


READS = frozenset({"collect", "history", "lock", "plan", "precheck", "status", "verify"})
# The verbs that change a host. docs/operations describes how each of them continues.
VERBS: Mapping[str, AfterCtrlC] = {
    # Before one of them is started or stopped. From then on the hosts tell.
    "deploy": AfterCtrlC("no server was started or stopped"),
    "switch": AfterCtrlC("no server was started or stopped"),
    "rollback": AfterCtrlC("a server that was restarted goes on loading", f"{SAME} in the same direction"),
    "up": AfterCtrlC("a transfer that has begun goes on there, and no server was started or stopped"),
    "pull": AfterCtrlC("a transfer that has begun goes on there, and what has arrived is kept"),
    "fabric": AfterCtrlC(
        "settings that were not confirmed are taken back by the Spark's own timer", f"{SAME} or reports what is set"
    ),
    "remove": AfterCtrlC("what was removed is gone"),
    "prune": AfterCtrlC("what was removed is gone"),
    "lend": AfterCtrlC("a server that was told to stop ends, and a lease that was noted brings it back at its end"),
    "bench": AfterCtrlC("a measurement that runs on a Spark goes on, and its cells are kept"),
    "stop": AfterCtrlC(
        "a server that was told to stop ends", f"{SAME}, `ansible-playbook deploy.yml` starts the servers again"
    ),
}


def line(  # noqa: PLR0913  the place, the time, and what was seen
    verb: str,
    task: str,
    seconds: float,
    changes: Mapping[str, int],
    *,
    check: bool,
    told: Sequence[Mapping[str, str]] = (),
) -> str:
    """Return the line for a verb that was interrupted in a task. `changes` counts the changing tasks of each host; a
    task that was running is not counted. `told` has what the hosts have said by `if_interrupted`."""
    begun = f"Interrupted: {verb} ended after {clock(seconds)}" + (f" in '{task}'" if task else "")
    again = "Fix: run the same command again."
    if check or verb in READS or not changes:
        return f"{begun}. It has changed no host, and nothing continues there. {again}"
    left = _together(told) or VERBS.get(verb, AfterCtrlC("a task that has begun on a host may still end there"))
    changed = [f"{host} by {number} task{'s' * (number > 1)}" for host, number in changes.items() if number]
    seen = f"Changed so far: {', '.join(changed)}" if changed else f"No finished task has changed {', '.join(changes)}"
    fix = f"{left.command}, {left.undo}" if left.undo else left.command
    return typed(f"{begun}. {seen}; {left.continues}. Fix: {fix}; `ansible-playbook status.yml` shows the state.")


def _together(told: Sequence[Mapping[str, str]]) -> AfterCtrlC | None:
    """Return what several hosts have said, each thing once: the ranks of a deployment say the same."""
    if not told:
        return None
    continues, undo = (dict.fromkeys(each[key] for each in told if each[key]) for key in ("continues", "undo"))
    return AfterCtrlC("; ".join(continues), undo=", ".join(undo))


# Below the heading of a part that --check cannot show.
LEFT_OUT = (
    "  --check does not show this part: it begins with what the parts before it bring. Without --check it follows."
)


def part(names: Sequence[str], number: int) -> str:
    """Return the heading of a part of a verb that consists of others. `number` begins at 1."""
    return f"[{number}/{len(names)}] {names[number - 1]}"


def after_a_part(names: Sequence[str], number: int) -> str:
    """Return the line that ends such a verb after a failure in this part."""
    return f"It ended in {part(names, number)}; {SAME}."
