"""The launch on a host beside the planned one: an edit by hand, its changes, and what only a start reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from vllm_spark.deploy import launch
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.node import launch_difference


@dataclass(frozen=True, slots=True)
class OnHost:
    """`changes` are those of the command, as `--flag old → new`, and `next_start` has what the next start does in
    another way. `edited`: somebody has edited the launch by hand after its deploy. `ran`: a server has started with
    that edit, or it is not known that none has. `runs`: the server that runs now is another one because of it."""

    changes: str = ""
    next_start: str = ""
    edited: bool = False
    ran: bool = False
    runs: bool = False


def on_host(host: HostContext) -> OnHost:
    """Return what is on the host of a launch. Its rank comes from ranks.join."""
    found = host.launch
    if not found:
        return OnHost()
    script = launch.script(host.spec)
    running = host.engine["started"] if host.engine else None
    edited = found["edited_at"] is not None
    ran = edited and (running is None or found["edited_at"] <= running)
    changes = launch_difference.differences(found["command"], launch_difference.command(script))
    waits = launch_difference.next_start(found["of_start"], launch_difference.of_start(script))
    return OnHost(
        changes=launch_difference.listed(changes) if changes else "",
        next_start="; ".join(waits),
        edited=edited,
        ran=ran,
        runs=ran and running is not None and found["found"] != launch.standing(host.spec),
    )
