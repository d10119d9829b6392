"""Who ends a unit, as systemd knows it at that moment, and what the status of a container means.

The state program asks when a unit has ended, the supervisor of a rank when systemd stops it. Standard library alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vllm_spark.node import deployment_state, state_writer
from vllm_spark.node.deployment_state import DRAINING, Places

DOCKER = "docker.service"
DOCKER_ENDED = "Docker ended on this Spark"
ON_PURPOSE = ("stop", "restart", "try-restart")
RESTARTS = ("restart", "try-restart")
# `docker run` ends with the status of its container, and 125 is its own (Docker's reference of `docker run`).
MEANINGS: Mapping[int, str] = {
    0: "a process of its engine died, so its API ended",
    125: "Docker did not start it, or lost it",
    137: "it was killed or removed, for lack of memory or by hand",
    143: "it was stopped, and not by its unit",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """The end of a unit that somebody has asked for. `person`: it is neither Docker nor a shutdown. `returns`: systemd
    starts the unit again without another request."""

    why: str
    person: bool
    returns: bool


def asked(name: str, places: Places) -> Asked | None:
    """Return who asks systemd at this moment for the end of a deployment's unit, None if nobody does."""
    unit = f"vllm@{name}.service"
    listed = output_of("systemctl", "list-jobs", "--plain", "--no-legend", unit, DOCKER).splitlines()
    jobs = {row[1]: row[2] for row in map(str.split, listed) if len(row) > 2}  # noqa: PLR2004  id, unit, type, state
    job, docker = jobs.get(unit, ""), jobs.get(DOCKER, "")
    if job not in ON_PURPOSE:
        return None
    if output_of("systemctl", "is-system-running").strip() == "stopping":
        return Asked("its Spark shuts down", person=False, returns=places.starts_with_boot(name))
    if docker:
        # A Docker that was killed has a job `start`.
        why = "Docker restarts" if docker in RESTARTS else "Docker was stopped" if docker == "stop" else DOCKER_ENDED
        return Asked(why, person=False, returns=job in RESTARTS)
    now, holder = deployment_state.present(name, places), state_writer.operator(places)
    how = "systemctl restart" if job in RESTARTS else "systemctl stop, or the start of another deployment"
    drained = now["why"] if now["state"] == DRAINING else ""
    return Asked(drained or (f"by {holder}" if holder else how), person=True, returns=job in RESTARTS)


def docker_is_down() -> bool:
    """Return True if Docker has ended, and its containers with it."""
    return output_of("systemctl", "is-active", DOCKER).strip() not in ("active", "")


def of_container(status: int) -> str:
    """Return what the status of a container says about its end."""
    meaning = MEANINGS.get(status)
    return f"its container ended with status {status}" + (f": {meaning}" if meaning else "")


def shown(units: Iterable[str], *properties: str) -> list[dict[str, str]]:
    """Return these properties of units, in their order; an empty entry if systemd does not answer."""
    output = output_of("systemctl", "show", "--property", ",".join(properties), *units)
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in output.split("\n\n")]


def output_of(*argv: str) -> str:
    """Return the output of a command; empty if it cannot be run."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
