#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Writes what systemd does with the unit of a deployment to the state of that deployment. The units call it.

state starts NAME     ExecStartPre: the launch begins
state ended NAME      ExecStopPost: the launch has ended, and systemd says how in SERVICE_RESULT, EXIT_CODE, EXIT_STATUS
state gave-up NAME    OnFailure
state edge            before the edge starts: the file of all states
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import deployment_state, host_layout, state_writer  # noqa: E402  the path above leads to it
from vllm_spark.node.deployment_state import (  # noqa: E402
    DRAINING,
    FAILED,
    GAVE_UP,
    LOADING,
    PLACES,
    STOPPED,
    WANTED,
    State,
)
from vllm_spark.node.state_writer import StateOf  # noqa: E402
from vllm_spark.node.unit_limits import LIMIT_REACHED, NO_RESTART  # noqa: E402

ON_PURPOSE = ("stop", "restart", "try-restart")


def starts(name: str) -> None:
    """Note the start of the unit. A rank of a pair first waits for its peer, and loads later."""
    launch = deployment_state.text(os.path.join(PLACES.config, name, "launch"))
    # The program of a pair writes the states of its rank itself.
    if host_layout.SUPERVISOR in launch:
        StateOf(name, PLACES).write(WANTED)
    else:
        StateOf(name, PLACES).write(LOADING, peer="")


def ended(name: str, environment: Mapping[str, str]) -> None:
    """Note the end of the launch. A program that has ended it on purpose or for a fault has written why."""
    job = job_of(name)
    old = deployment_state.present(name, PLACES)
    if job in ON_PURPOSE:
        StateOf(name, PLACES).write(STOPPED, purpose(job, old))
    elif old["state"] not in (FAILED, GAVE_UP):
        StateOf(name, PLACES).write(FAILED, fault(environment))


def gave_up(name: str) -> None:
    """Note that the unit stays down. systemd 254 and later run OnFailure at each end that a restart follows, too.

    The unit always starts again, except after this exit status and at its limit. Result does not name the limit: it
    keeps the fault of the last end (service.c, service_enter_dead)."""
    unit = show(f"vllm@{name}.service", "ActiveState", "ExecMainStatus")
    if unit.get("ActiveState") != "failed":
        return
    last = deployment_state.present(name, PLACES)["last_end"] or "nobody knows why"
    many = "it does not start again" if unit.get("ExecMainStatus") == str(NO_RESTART) else LIMIT_REACHED
    StateOf(name, PLACES).write(GAVE_UP, f"{many}, the last ended because {last}", after=(WANTED, LOADING, FAILED))


def purpose(job: str, old: State) -> str:
    """Return why a deployment was stopped on purpose."""
    if old["state"] == DRAINING and old["why"]:
        return old["why"]
    if holder := state_writer.operator(PLACES):
        return f"by {holder}"
    if output_of("systemctl", "is-system-running").strip() == "stopping":
        return "this Spark shuts down"
    return "systemctl restart" if job != "stop" else "systemctl stop, or the start of another deployment"


def fault(environment: Mapping[str, str]) -> str:
    """Return what systemd says about the end of a process: systemd.exec(5), SERVICE_RESULT."""
    result, code, status = (environment.get(key, "") for key in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS"))
    if code == "exited":
        return f"its container ended with status {status}"
    if code in ("killed", "dumped"):
        return f"signal {status} ended it" + (f" ({result})" if result not in ("signal", "core-dump") else "")
    return f"its unit failed: {result or 'systemd gives no reason'}"


def job_of(name: str) -> str:
    """Return the type of the job that systemd runs for a unit, such as stop; empty for an end that nobody asked for."""
    words = output_of("systemctl", "list-jobs", "--plain", "--no-legend", f"vllm@{name}.service").split()
    return words[2] if len(words) > 2 else ""  # noqa: PLR2004  id, unit, type, state


def show(unit: str, *properties: str) -> dict[str, str]:
    """Return properties of a unit."""
    lines = output_of("systemctl", "show", "--property", ",".join(properties), unit).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def output_of(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="state", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("event", choices=("starts", "ended", "gave-up", "edge"))
    parser.add_argument("name", nargs="?", default="", metavar="NAME")
    args = parser.parse_args(argv)
    match args.event:
        case "starts":
            starts(args.name)
        case "ended":
            ended(args.name, os.environ)
        case "gave-up":
            gave_up(args.name)
        case _:
            state_writer.write_map(PLACES)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
