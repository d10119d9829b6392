#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Writes what systemd does with the unit of a deployment to its state and to the count of its starts. Units call it.

state starts NAME     ExecCondition: the launch begins; status 78 if it must not, as while its memory is lent
state ended NAME      ExecStopPost: the launch has ended, and systemd says how in SERVICE_RESULT, EXIT_CODE, EXIT_STATUS
state gave-up NAME    OnFailure
state edge            before the edge starts: the file of all states
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import deployment_state, endings, host_layout, lease, state_writer  # noqa: E402  the path above leads to it
from vllm_spark.node import starts as records  # noqa: E402
from vllm_spark.node.deployment_state import FAILED, GAVE_UP, LENT, LOADING, PLACES, STOPPED, WANTED  # noqa: E402
from vllm_spark.node.endings import Asked  # noqa: E402
from vllm_spark.node.starts import Moment, Record  # noqa: E402
from vllm_spark.node.state_writer import StateOf  # noqa: E402
from vllm_spark.node.unit_limits import LIMIT_REACHED, NO_RESTART  # noqa: E402


def starts(name: str) -> int:
    """Note the start of the unit. The rank of a pair waits for its peer, and its supervisor begins the start later.
    Returns NO_RESTART for a deployment that is lent or has given up: its launch does not run. That of a pair that gave
    up does, without an engine, because its supervisor tells the other rank."""
    state, of_pair, now = StateOf(name, PLACES), has_supervisor(name), records.moment(PLACES)
    if lent := lease.of(name, PLACES):
        state.write(LENT, lent.why)
        return NO_RESTART
    spark = f"the Spark of rank {rank(name)}" if of_pair else "this Spark"
    with_boot = PLACES.starts_with_boot(name)
    record = records.change(name, PLACES, lambda old: records.unit_begins(old, now, with_boot=with_boot, spark=spark))
    if record.count.gave_up:
        state.write(GAVE_UP, record.count.gave_up)
        return 0 if of_pair else NO_RESTART
    if of_pair:
        state.write(WANTED)
        return 0
    if pause := records.pause_s(record, now):
        state.write(WANTED, records.paused(record, pause), peers=())
        time.sleep(pause)
    new, now = records.new_id(), records.moment(PLACES)
    records.change(name, PLACES, lambda old: records.begun(old, new, now))
    state.write(LOADING, peers=())
    return 0


def ended(name: str, environment: Mapping[str, str]) -> None:
    """Note the end of the launch. A program that has ended it on purpose or for a fault has written why."""
    if environment.get("SERVICE_RESULT") == "exec-condition":
        return  # `starts` has not let it begin
    asked, now, of_pair = endings.asked(name, PLACES), records.moment(PLACES), has_supervisor(name)
    if asked:
        record = records.change(name, PLACES, lambda old: stopped(old, asked, now))
        gave_up = record.count.gave_up
        word = GAVE_UP if gave_up else WANTED if asked.returns else STOPPED
        lent = lease.of(name, PLACES) if word == STOPPED else None
        StateOf(name, PLACES).write(LENT if lent else word, lent.why if lent else gave_up or asked.why)
    else:
        record = by_itself(name, environment, now, of_pair=of_pair)
    # What is no failed start leaves nothing of systemd's own count. A launch that fails before its start is one there.
    in_order = of_pair and environment.get("SERVICE_RESULT") == "success"
    if asked or in_order or (record.start and record.id not in record.count.failures):
        endings.output_of("systemctl", "reset-failed", f"vllm@{name}.service")


def stopped(record: Record, asked: Asked, now: Moment) -> Record:
    """Return the record of a unit whose end somebody has asked for."""
    if asked.person:
        return records.acted(record)
    return replace(records.left(record, now), again=asked.returns)


def by_itself(name: str, environment: Mapping[str, str], now: Moment, *, of_pair: bool) -> Record:
    """Note an end that nobody asked for. Returns the record. The supervisor of a pair has noted that of its start."""
    state, was = StateOf(name, PLACES), deployment_state.present(name, PLACES)
    hung = was["why"] if was["state"] == FAILED and not of_pair else ""
    why = hung or fault(environment)
    if not records.read(name, PLACES).runs:
        # A start of release 0.1.0 has no record, and a supervisor that ends in order has written its state.
        if was["state"] not in (FAILED, GAVE_UP) and (not of_pair or environment.get("SERVICE_RESULT") != "success"):
            state.write(FAILED, why)
        return records.change(name, PLACES, lambda old: replace(old, again=True))
    if endings.docker_is_down():
        state.write(WANTED, endings.DOCKER_ENDED)
        return records.change(name, PLACES, lambda old: replace(records.left(old, now), again=True))
    record = records.change(name, PLACES, lambda old: replace(records.failed(old, why), again=of_pair))
    state.write(FAILED, why)
    again = "it starts again"
    if record.count.gave_up:
        state.write(GAVE_UP, record.count.gave_up)
        again = records.farewell(name, record.count.gave_up)
        if not of_pair:
            endings.output_of("systemctl", "stop", "--no-block", f"vllm@{name}.service")
    print(f"vllm-spark: the start failed: {why}; {again}", flush=True)
    return record


def gave_up(name: str) -> None:
    """Note that the unit stays down. systemd 254 and later run OnFailure at each end that a restart follows, too.

    Nobody has counted the starts if the supervisor is that of release 0.1.0, or if systemd's own limit is reached."""
    unit = show(f"vllm@{name}.service", "ActiveState", "ExecMainStatus")
    if unit.get("ActiveState") != "failed":
        return
    last = deployment_state.present(name, PLACES)["last_end"] or "nobody knows why"
    many = "it does not start again" if unit.get("ExecMainStatus") == str(NO_RESTART) else LIMIT_REACHED
    why = f"{many}, the last ended because {last}"
    if StateOf(name, PLACES).write(GAVE_UP, why, after=(WANTED, LOADING, FAILED))["why"] == why:
        records.change(name, PLACES, lambda old: records.gives_up(old, why))


def fault(environment: Mapping[str, str]) -> str:
    """Return what systemd says about the end of a process: systemd.exec(5), SERVICE_RESULT."""
    result, code, status = (environment.get(key, "") for key in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS"))
    if code == "exited" and status.isdecimal():
        return endings.of_container(int(status))
    if code in ("killed", "dumped"):
        return f"signal {status} ended it" + (f" ({result})" if result not in ("signal", "core-dump") else "")
    return f"its unit failed: {result or 'systemd gives no reason'}"


def has_supervisor(name: str) -> bool:
    """Return True if the launch is that of a rank of a pair."""
    return host_layout.SUPERVISOR in deployment_state.text(os.path.join(PLACES.config, name, "launch"))


def rank(name: str) -> int:
    record = deployment_state.json_object(deployment_state.text(os.path.join(PLACES.config, name, "deployed.json")))
    return int(deployment_state.number(record.get("rank")) or 0)


def show(unit: str, *properties: str) -> dict[str, str]:
    """Return properties of a unit."""
    return endings.shown([unit], *properties)[0]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="state", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("event", choices=("starts", "ended", "gave-up", "edge"))
    parser.add_argument("name", nargs="?", default="", metavar="NAME")
    args = parser.parse_args(argv)
    match args.event:
        case "starts":
            return starts(args.name)
        case "ended":
            ended(args.name, os.environ)
        case "gave-up":
            gave_up(args.name)
        case _:
            state_writer.write_map(PLACES)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
