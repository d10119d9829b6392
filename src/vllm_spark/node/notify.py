#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Tells the owner of this Spark about troubles, and when they have ended. Its timer starts it every minute.

notify            look, and send what waits
notify --show     print as JSON what was told and what waits
notify --test     send a test message by the unit, and print as JSON whether it arrived

It looks at the state of each deployment, at the units of the edge and at its certificate. What was told and what waits
is on the disk, so a message survives a reboot, and each trouble is told once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import certificate, delivery, deployment_state, endings, host_layout, state_file, troubles  # noqa: E402  the path above leads to it
from vllm_spark.node.deployment_state import FAILED, HUNG, PLACES, json_object, text  # noqa: E402
from vllm_spark.node.host_layout import EDGE_ROUTE_UNIT, EDGE_UNIT, SWITCH_UNIT  # noqa: E402
from vllm_spark.node.state_file import warn  # noqa: E402
from vllm_spark.node.troubles import Deployment, Look, Memory, Message  # noqa: E402
from vllm_spark.node.unit_limits import READY_S  # noqa: E402

SETTINGS, FOLDER = Path(host_layout.NOTIFY_SETTINGS), Path(host_layout.NOTIFY_DIR)
# What is kept from one look to the next; and the request for a test message.
KEPT, TEST = FOLDER / "kept.json", FOLDER / "test"
CERTIFICATE = host_layout.EDGE_CERTIFICATE
# ActiveState of a unit of the edge that answers.
SOUND = ("active", "reloading")
# A lock counts for so long: a run that was cut off leaves its lock there.
HELD_S = 2 * 3600.0
# Messages that wait. The oldest makes room.
QUEUE = 32
# Pauses after a failed delivery: a minute, twice as long after each next one, an hour.
RETRY_S, MAX_RETRY_S = 60.0, 3600.0
SEE = "See docs/runbooks/notify.md"


def main(argv: Sequence[str]) -> int:
    if argv and argv not in (["--show"], ["--test"]):
        print(__doc__)
        return 2
    settings = json_object(text(str(SETTINGS)))
    if not settings:
        warn(f"{SETTINGS} has no settings — expected: those of vllm_notify. Fix: vllm-spark deploy. {SEE}")
        return 1
    if argv:
        why = test() if argv == ["--test"] else ""
        print(json.dumps({"target": settings["target"], "why": why, **stored()}))
        return 0
    kept, now = stored(), time.time()
    memory = Memory(**kept["memory"])
    messages = [*troubles.judge(look(settings, memory.looked or now, now), memory)]
    if TEST.exists():
        messages.append(Message("test", f"a test message of {settings['host']}", "", now, host=settings["host"]))
        kept["failure"] = {}
        TEST.unlink()
    kept["memory"] = asdict(memory)
    kept["wait"] += [message._asdict() for message in messages]
    for lost in kept["wait"][:-QUEUE]:
        warn(f"a message is dropped, because {QUEUE} newer ones wait: {lost['what']}")
    del kept["wait"][:-QUEUE]
    save(kept)
    deliver(kept, settings, now)
    if "heartbeat" in settings and (why := delivery.beat(settings)) != kept["beat"]:
        kept["beat"] = why
        save(kept)
        if why:
            warn(f"the heartbeat URL does not answer: {why} — expected: status 200. It is asked every minute. {SEE}")
    return 0


def stored() -> dict[str, Any]:
    """Return what is kept: `memory` of the last look, the messages that `wait`, the `failure` of the delivery, which is
    empty without one, and why the heartbeat had no answer (`beat`). A broken file begins anew."""
    kept = json_object(text(str(KEPT)))
    try:
        wait = [Message(**one)._asdict() for one in kept["wait"]]
        beat = str(kept.get("beat", ""))
        return {"memory": asdict(Memory(**kept["memory"])), "wait": wait, "failure": {**kept["failure"]}, "beat": beat}
    except (KeyError, TypeError):
        return {"memory": asdict(Memory()), "wait": [], "failure": {}, "beat": ""}


def save(kept: dict[str, Any]) -> None:
    state_file.replace_file(KEPT, json.dumps(kept), 0o600)


def deliver(kept: dict[str, Any], settings: dict[str, Any], now: float) -> None:
    """Send what waits, in order. A failure is in the journal, and its pause begins."""
    while kept["wait"] and now >= kept["failure"].get("next", 0.0):
        if why := delivery.send(Message(**kept["wait"][0]), settings):
            tries = kept["failure"].get("tries", 0) + 1
            pause_s = min(RETRY_S * 2 ** (tries - 1), MAX_RETRY_S)
            kept["failure"] = {"why": why, "tries": tries, "next": now + pause_s}
            kept["wait"] = [one for one in kept["wait"] if one["event"] != "test"]
            warn(
                f"{settings['target']} took no message, so {len(kept['wait'])} wait: {why} — expected: a target "
                f"that takes them. It is tried again after {pause_s / 60:.0f} min. Fix: vllm-spark notify --test. {SEE}"
            )
        else:
            del kept["wait"][0]
            kept["failure"] = {}
        save(kept)


def test() -> str:
    """Let the unit, which has the limits of every other message, send one. Returns why it did not arrive."""
    TEST.touch(0o600)
    why = ""
    # A run that has looked already does not see the file, and a start only waits for the end of that run.
    while TEST.exists() and not why:
        start = ["systemctl", "start", host_layout.NOTIFY_UNIT]
        done = subprocess.run(start, capture_output=True, text=True, check=False)
        why = done.stderr.strip() if done.returncode else ""
    TEST.unlink(missing_ok=True)
    return why or str(stored()["failure"].get("why", ""))


def look(settings: Mapping[str, Any], last: float, now: float) -> Look:
    """Return what is seen on this Spark. `last`: when it was looked at before."""
    host = settings["host"]
    units = states_of(EDGE_UNIT, EDGE_ROUTE_UNIT, SWITCH_UNIT)
    active = {name: unit.get("ActiveState", "not read") for name, unit in units.items()}
    faults = [f"{name} is {active[name]}" for name in (EDGE_UNIT, EDGE_ROUTE_UNIT) if active[name] not in SOUND]
    has_edge = units[EDGE_UNIT].get("UnitFileState") == "enabled"
    return Look(
        host=host,
        now=now,
        booted=now - time.clock_gettime(time.CLOCK_BOOTTIME),
        held=is_locked(now) or active[SWITCH_UNIT] in host_layout.RUNNING,
        deployments=[deployment(name, last) for name in PLACES.deployments()],
        edge_fault=", ".join(faults) if has_edge else None,
        certificate_end=certificate.end(str(CERTIFICATE)) if has_edge else None,
        others=others(settings),
        alerts=delivery.alerts(settings["alerts"]) if "alerts" in settings else None,
    )


def others(settings: Mapping[str, Any]) -> dict[str, bool | None]:
    """Return whether the other Sparks of the site answer. A Spark that does not is told by the first one of the site
    that does: None for the others."""
    host, site = settings["host"], settings.get("site", {})
    asked = {other: delivery.answers(url, host_layout.EDGE_AUTHORITY) for other, url in site.items() if other != host}
    first = next((name for name in site if name == host or asked[name]), host)
    return {name: good or (False if first == host else None) for name, good in asked.items()}


def deployment(name: str, last: float) -> Deployment:
    """Return a deployment of this Spark, with its transitions since the last look."""
    record, gates = (
        json_object(text(os.path.join(PLACES.config, name, file))) for file in ("deployed.json", "gates.json")
    )
    hangs = [
        (one["time"], one["why"])
        for one in deployment_state.history(name, PLACES)
        if one["time"] > last and one["state"] == FAILED and one["why"].startswith(HUNG)
    ]
    state, deadline_s = deployment_state.present(name, PLACES), float(gates.get("deadline_s") or READY_S)
    return Deployment(name, state, record.get("rank") or 0, deadline_s, hangs)


def is_locked(now: float) -> bool:
    """Return True while a verb holds this Spark (plugins/module_utils/spark_lock.py)."""
    try:
        return now - os.stat(os.path.join(PLACES.run, host_layout.LOCK)).st_mtime < HELD_S
    except OSError:
        return False


def states_of(*names: str) -> dict[str, dict[str, str]]:
    """Return ActiveState and UnitFileState of units; empty for one that systemd does not report."""
    known = {unit.get("Id", ""): unit for unit in endings.shown(names, "Id", "ActiveState", "UnitFileState")}
    return {name: known.get(name, {}) for name in names}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
