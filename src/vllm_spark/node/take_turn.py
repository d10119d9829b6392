#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Runs the engine of a deployment that shares its Spark when it is its turn to load; lets a stop wait for a neighbour.

take-turn NAME -- COMMAND    wait for the turn and for the memory of the budget, then become COMMAND
take-turn --stop NAME        wait until no other deployment loads, for STOP_S at the most

A second process of the first one keeps the turn until the deployment serves, until the deadline of the start, or until
the command has ended.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import deployment_state, starts  # noqa: E402  the path above leads to it
from vllm_spark.node import turn as turns  # noqa: E402
from vllm_spark.node.deployment_state import LOADING, PLACES, SERVING, WANTED  # noqa: E402
from vllm_spark.node.state_writer import StateOf  # noqa: E402
from vllm_spark.node.turn import POLL_S, ROOM_S, Turn  # noqa: E402
from vllm_spark.node.unit_limits import READY_S  # noqa: E402

# Less than TimeoutStopSec of a shared unit (deploy/exclusion.py) by what the stop itself takes.
STOP_S = 300.0


def wait(name: str, turn: Turn) -> str:
    """Wait for the turn, then for the memory. Returns an error; empty if the start may begin."""
    written, deadline = "", 0.0
    while True:
        if holder := turn.take():
            why = f"it waits for its turn to load: {holder} loads on this Spark"
        elif why := turn.lacks():
            deadline = deadline or time.monotonic() + ROOM_S
            if time.monotonic() >= deadline:
                return turns.overdue(why)
            why = f"it waits for memory: {why}"
        else:
            return ""
        if why != written:
            written = why
            print(f"vllm-spark: {why}", flush=True)
            StateOf(name, PLACES).write(WANTED, why, after=(LOADING, WANTED))
        time.sleep(POLL_S)


def begin(name: str) -> None:
    """Note that the start begins now: a wait for the turn is no part of it."""
    new, now = starts.new_id(), starts.moment(PLACES)
    starts.change(name, PLACES, lambda old: starts.begun(old, new, now))
    StateOf(name, PLACES).write(LOADING, after=(WANTED, LOADING))


def keep(name: str, engine: int) -> None:
    """Return when the deployment serves, its command has ended, or the start is overdue. `engine` is the reading end of
    a pipe that the command holds open."""
    gates = deployment_state.text(os.path.join(PLACES.config, name, "gates.json"))
    seconds = deployment_state.number(deployment_state.json_object(gates).get("deadline_s")) or READY_S
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not select.select([engine], [], [], POLL_S)[0]:
        if deployment_state.present(name, PLACES)["state"] == SERVING:
            return


def run(name: str, command: Sequence[str]) -> NoReturn:
    """Become the command, with the turn in a process of its own. Ends with status 1 if there is no memory for it."""
    turn = Turn(name, PLACES)
    if error := wait(name, turn):
        print(f"vllm-spark: {error}", flush=True)
        sys.exit(1)
    begin(name)
    reads, writes = os.pipe()
    os.set_inheritable(writes, True)
    if not (child := os.fork()):
        if not os.fork():
            os.close(writes)
            keep(name, reads)
        os._exit(0)
    os.waitpid(child, 0)  # the command would wait for no child that it does not know
    turn.give()  # the other process has it still
    os.execvp(command[0], list(command))  # noqa: S606  the command of the launch


def stop(name: str) -> int:
    """Wait until no other deployment loads. A deployment that loads itself waits for nobody."""
    turn, deadline = Turn(name, PLACES), time.monotonic() + STOP_S
    while (holder := turn.take()) not in ("", name) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if holder not in ("", name):
        print(f"vllm-spark: {name} stops though {holder} loads, after {STOP_S:.0f} s", flush=True)
    turn.give()
    return 0


def main(argv: Sequence[str]) -> int:
    """Run one of the two."""
    match argv:
        case ["--stop", name]:
            return stop(name)
        case [name, "--", *command] if command:
            run(name, command)
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
