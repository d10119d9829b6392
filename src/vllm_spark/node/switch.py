#!/usr/bin/python3
# Placed by vllm-spark, which knows it by this line.
"""Switches this Spark from the running model server to another deployed one, without Ansible.

    vllm-switch           list the deployments and their states
    vllm-switch NAME      drain and stop the running server, wait for its memory, start NAME, wait for a token

If NAME returns no token, the previous server is started again. The server that answers is enabled, so that a boot
starts it. The gates are not judged; `switch.yml -e to=NAME` judges them. For a pair, run it on the head, then on the
other Spark; each waits for the other.

The work runs in a unit of its own, vllm-switch.service. A lost connection does not interrupt it, and two switches
cannot run at once. `journalctl -u vllm-switch` has the output.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import syslog
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import deployment_state, edge_admin, engine_api, host_layout, neighbours, state_writer  # noqa: E402
from vllm_spark.node.deployment_state import GAVE_UP, PLACES, SERVING, WANTED  # noqa: E402
from vllm_spark.node.engine_api import Document, EngineAddress, read  # noqa: E402
from vllm_spark.node.state_writer import StateOf  # noqa: E402
from vllm_spark.node.unit_limits import READY_S, memory, needed  # noqa: E402

CONFIG_DIR = Path(PLACES.config)
OWN_UNIT = host_layout.SWITCH_UNIT
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

DRAIN_S = 30.0
# What the edge holds back comes in again this long after the drain's deadline, if nothing has followed the drain.
LET_IN_S = 120.0
# Unified memory comes back a while after its process has ended.
MEMORY_S = 60.0
POLL_INTERVAL_S = 0.5
LOG_INTERVAL_S = 15.0
# Timeout of a rank for the start of its peer.
PEER_S = 600.0
# The part of a refusing answer that is shown, in characters.
SHOWN = 200
# An engine whose start has failed twice will not start by itself.
FAILURES = 2

RUNS = ("active", "activating", "deactivating", "reloading")


def unit(name: str) -> str:
    return f"vllm@{name}.service"


def say(text: str) -> None:
    """Write a line to the journal and to the caller, which may have disconnected."""
    syslog.syslog(text)
    reply(text)


def reply(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, flush=True)


def systemctl(*argv: str) -> str:
    """Run systemctl. Returns its error; empty if it succeeded."""
    done = subprocess.run(["systemctl", *argv], capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else ""


def states(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the properties of their units by deployment."""
    if not names:
        return {}
    properties = "Id,ActiveState,UnitFileState,Result"
    argv = ["systemctl", "show", "--property", properties, *map(unit, names)]
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    blocks = [dict(line.split("=", 1) for line in text.splitlines() if "=" in line) for text in output.split("\n\n")]
    return {block["Id"][len("vllm@") : -len(".service")]: block for block in blocks if "Id" in block}


def occupants(units: Mapping[str, Mapping[str, str]], to: str) -> list[str]:
    """Return what `to` replaces: what runs, then what is enabled, because it ran before an interrupted switch. What the
    plan has beside `to` stays."""
    others = [name for name in units if name != to and name not in record(to).get("beside", [])]
    running = [name for name in others if units[name]["ActiveState"] in RUNS]
    return running + [n for n in others if n not in running and units[n].get("UnitFileState") == "enabled"]


def record(name: str) -> Document:
    return read(CONFIG_DIR / name / "deployed.json")


def gave_up(name: str) -> bool:
    return deployment_state.present(name, PLACES)["state"] == GAVE_UP


def api_of(name: str) -> EngineAddress:
    """Return where the API of a deployment is; empty for a rank without one."""
    return cast(EngineAddress, read(CONFIG_DIR / name / "liveness.json"))


def drain(name: str, within_s: float, why: str) -> Document:
    """Let the edge send it no new request, and wait until it has none left. Returns drain_s, and the number `left` at
    the deadline. A rank without an API, or one that does not answer, has nothing to wait for. `why` it is stopped is
    its state from now on."""
    started_at, api, left = time.monotonic(), api_of(name), 0
    StateOf(name, PLACES).write(deployment_state.DRAINING, why, after=(SERVING,))
    if api:
        hold_back(name, within_s)
    while api:
        left = max(engine_api.requests_in(engine_api.metrics(api)), edge_admin.requests_at(name))
        if not left or time.monotonic() - started_at >= within_s:
            break
        time.sleep(POLL_INTERVAL_S)
    return {"drain_s": time.monotonic() - started_at, "left": left}


def drain_all(names: Sequence[str], within_s: float, why: str) -> Document:
    """Drain one deployment after the other. Returns the sums of what `drain` returns."""
    done = [drain(name, within_s, why) for name in names]
    return {"drain_s": sum(one["drain_s"] for one in done) or 0.0, "left": sum(one["left"] for one in done)}


def hold_back(name: str, within_s: float) -> None:
    """Let the edge send a deployment no new request. A timer undoes that, in case this run does not go on."""
    if not edge_admin.hold_back(name):
        return  # no edge has it: the engine is open
    timer = let_in_timer(name)
    systemctl("stop", timer)  # of an earlier switch
    run = ["systemd-run", "--quiet", "--collect", f"--unit={timer}", f"--on-active={within_s + LET_IN_S:.0f}"]
    run += [sys.executable, os.path.abspath(__file__), "--step=let-in", name]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        edge_admin.let_in(name)
        syslog.syslog(f"new requests for {name} are not held back: {done.stderr.strip()}")


def let_in(name: str, *, stopped: bool = False) -> None:
    """Let the edge send a deployment new requests again, as soon as it is up."""
    if not stopped:
        StateOf(name, PLACES).write(SERVING, after=(deployment_state.DRAINING,))
    if edge_admin.let_in(name, stopped=stopped):
        systemctl("stop", let_in_timer(name))


def let_in_timer(name: str) -> str:
    return f"vllm-switch-let-in-{name}.timer"


def await_memory(name: str, within_s: float) -> str:
    """Wait until there is memory for `name`. Returns an error; empty if there is enough."""
    deadline = time.monotonic() + within_s
    room = record(name).get("room", {})
    while True:
        total, available = memory()
        if available >= needed(room, total):
            return ""
        if time.monotonic() >= deadline:
            has, wants = available / (1 << 30), needed(room, total) / (1 << 30)
            return (
                f"{has:.1f} GiB of memory are available {within_s:.0f} s after the stop, and {name} needs {wants:.1f} "
                "— expected: what ran before to have given its memory back. Fix: ps axo rss,comm --sort -rss | head. "
                "See docs/runbooks/gpu-memory-held.md"
            )
        time.sleep(POLL_INTERVAL_S)


def change(stop: Sequence[str], name: str, within_s: float, how: str = "start", *, anyway: bool = False) -> Document:
    """Stop, wait for the memory, start. Returns `ok`, the error `said`, the seconds of each step, and the gates of the
    started deployment for the caller to judge. Without a name nothing is started. `anyway`: an old deployment returns
    with its neighbours, even if the memory is short, because it is better than none."""
    done: Document = {"ok": True, "said": "", "name": name, "stop_s": 0.0, "memory_s": 0.0, "start_s": 0.0, "gates": {}}

    def step(key: str, error: str, started_at: float) -> bool:
        done[key] = time.monotonic() - started_at
        done["said"], done["ok"] = error, not error
        return not error

    started_at = time.monotonic()
    stopped = not stop or step("stop_s", systemctl("stop", *map(unit, stop)), started_at)
    for old in stop:
        let_in(old, stopped=stopped)
    if not stopped:
        return done
    if stop:
        systemctl("reset-failed", *map(unit, stop))  # an engine that is stopped may end with status 1
    if not name:
        return done
    started_at = time.monotonic()
    # A server that runs already, as after an interrupted run, holds its memory itself.
    short = "" if states([name])[name]["ActiveState"] in RUNS else await_memory(name, within_s)
    if not step("memory_s", short, started_at) and not anyway:
        return done
    started_at = time.monotonic()
    # Exit status 1: systemd has not loaded this unit yet, so there is nothing to reset.
    systemctl("reset-failed", unit(name))
    # The unit of a pair that gave up runs without an engine.
    how = "restart" if gave_up(name) else how
    step("start_s", systemctl(how, unit(name)), started_at)
    for other, state in states(record(name).get("beside", [])).items() if anyway else ():
        if state.get("UnitFileState") == "enabled" and state["ActiveState"] not in RUNS:
            systemctl("start", "--no-block", unit(other))  # it loads in its turn
    done["gates"] = read(CONFIG_DIR / name / "gates.json")
    return done


def enable_and_disable(name: str, disable: Sequence[str], why: str) -> Document:
    """Enable the new deployment and disable the replaced ones, so that a boot starts the new one. What does not run and
    is no longer wanted is stopped, `why` says for what."""
    for old in disable:
        StateOf(old, PLACES).write(deployment_state.STOPPED, why, after=(WANTED, deployment_state.FAILED, GAVE_UP))
    errors = [systemctl("disable", *map(unit, disable))] if disable else []
    errors += [systemctl("enable", unit(name))] if name else []
    return {"ok": not any(errors), "said": "; ".join(filter(None, errors))}


def ready(name: str) -> str:
    """Wait until it returns a token, or, on a rank without an API, until its pair serves. Returns an error or ""."""
    api = api_of(name)
    deadline_s = api.get("deadline_s") or read(CONFIG_DIR / name / "gates.json").get("deadline_s") or READY_S
    started_at = since = logged_at = time.monotonic()
    while True:
        state, now = states([name])[name], deployment_state.present(name, PLACES)
        if state["ActiveState"] not in RUNS or now["state"] == GAVE_UP or now["failed"] >= FAILURES:
            why = now["last_end"] or state["Result"]
            return f"{unit(name)} ended ({why}). Log: journalctl -u {unit(name)} -e"
        if not api and now["state"] == SERVING:
            return ""
        if api:
            status, text = engine_api.request_token(api, CONFIG_DIR / name / "env")
            if engine_api.is_token(status, text, engine_api.role_of(api)):
                # Liveness would see it up to a quarter of a minute later.
                StateOf(name, PLACES).write(SERVING, after=(WANTED, deployment_state.LOADING))
                return ""
            if status in engine_api.DEFINITE:
                return f"its API answers status {status}: {' '.join(text.split())[:SHOWN]}"
        at, apart = time.monotonic(), now["state"] == WANTED and bool(now["peers"])
        # Time spent waiting for the peer does not count as start time.
        since = at if apart else since
        if (apart and at - started_at > PEER_S) or at - since > deadline_s:
            was = deployment_state.described(now)
            return f"{unit(name)} was still {was}, after {at - started_at:.0f} s. Log: journalctl -u {unit(name)} -e"
        if at - logged_at >= LOG_INTERVAL_S:
            also = f"; run vllm-switch {name} there too" if apart else ""
            say(f"{name}: {deployment_state.described(now)}, {at - started_at:.0f} s{also}")
            logged_at = at
        time.sleep(POLL_INTERVAL_S)


def listing(units: Mapping[str, Mapping[str, str]]) -> str:
    """Return the deployments of this Spark and their states as a table."""
    rows = [("DEPLOYMENT", "STATE", "AT BOOT", "RECIPE", "PORT")]
    for name, state in units.items():
        boot = "starts" if state.get("UnitFileState") == "enabled" else "-"
        does = deployment_state.present(name, PLACES)["state"]
        rows.append((name, does, boot, str(record(name).get("recipe", "-")), str(record(name).get("port", "-"))))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    padded = (map(str.ljust, row, widths) for row in rows)
    return "\n".join("  ".join(words).rstrip() for words in padded)


def switch(name: str, drain_s: float, memory_s: float, who: str) -> int:
    """Run all steps, and restore the old deployment if one fails. Returns the exit status."""
    why = f"for {name}, by {who}"
    units = states(PLACES.deployments())
    if refused := neighbours.refusal(name, [*units], PLACES):
        say(refused)
        return 2
    stop = occupants(units, name)
    runs = units[name]["ActiveState"] == "active" and not gave_up(name)
    if not stop and runs and units[name].get("UnitFileState") == "enabled":
        say(f"{name} runs already")
        return 0
    if units[name]["ActiveState"] not in RUNS:
        beside = [other for other in units if other not in (name, *stop) and units[other]["ActiveState"] in RUNS]
        alone = [other for other in beside if not deployment_state.present(other, PLACES)["peers"]]
        stop += neighbours.give_way(name, stop, alone, {n: record(n).get("room", {}) for n in units}, memory())
    running = [other for other in stop if units[other]["ActiveState"] in RUNS]
    drained = drain_all(running, drain_s, why)
    started_at = time.monotonic()
    changed = change(running, name, memory_s)
    since = time.monotonic()
    error = changed["said"] or ready(name)
    if not error:
        kept, stopped = enable_and_disable(name, stop, why)["said"], " and ".join(running) or "nothing"
        say(
            f"{name} answers {time.monotonic() - started_at:.1f} s after the stop of {stopped}: "
            f"stop {changed['stop_s']:.1f}, memory back {changed['memory_s']:.1f}, start {changed['start_s']:.1f}, "
            f"until a token {time.monotonic() - since:.1f}. Drained for {drained['drain_s']:.1f} s before it"
            + (f", {drained['left']} requests cut off." if drained["left"] else ".")
        )
        if kept:
            say(f"a boot will not start it: {kept}")
        return 1 if kept else 0
    say(f"{name} does not serve: {error}")
    say(returned(name, (running or stop or [""])[0], memory_s))
    return 1


def returned(name: str, old: str, memory_s: float) -> str:
    """Restore the old deployment. Returns the line that reports it."""
    if not old:
        return f"nothing ran before it, so {name} is left as it is. See docs/runbooks/switch-failed.md"
    why = change([name], old, memory_s, anyway=True)["said"] or ready(old)
    end = f"did not come back either: {why}" if why else "serves again"
    return f"{old}, which ran before, {end}. See docs/runbooks/switch-failed.md"


def detached(argv: Sequence[str]) -> int:
    """Run this program in a unit of its own. Returns its exit status; its output is passed on."""
    output = subprocess.run(["systemctl", "is-active", OWN_UNIT], capture_output=True, text=True, check=False).stdout
    if output.strip() in RUNS:
        say(f"another switch runs on this Spark — expected: one at a time. Fix: journalctl -f -u {OWN_UNIT}. "
            "Wait for its end. See docs/runbooks/switch-refused.md")  # fmt: skip
        return 2
    run = ["systemd-run", "--quiet", "--collect", "--wait", "--pipe", f"--unit={OWN_UNIT}"]
    run += [
        "--description=Switch the model server of this Spark",
        sys.executable,
        os.path.abspath(__file__),
        "--inside",
    ]
    return subprocess.run([*run, *argv], check=False).returncode


def deployment(text: str) -> str:
    """A name that is none would become a folder of a deployment that nobody has."""
    if text and not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a deployment's name. Fix: `sudo vllm-switch` lists them")
    return text


def main(argv: Sequence[str]) -> int:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="vllm-switch", description=__doc__, formatter_class=plain)
    parser.add_argument("name", nargs="?", default="", metavar="NAME", type=deployment)
    parser.add_argument("--drain-s", type=float, default=DRAIN_S, help="seconds until requests are cut (%(default)s)")
    parser.add_argument("--memory-s", type=float, default=MEMORY_S, help="seconds to wait for memory (%(default)s)")
    # What switch.yml calls; each prints a JSON object. The timer of a drain calls let-in.
    parser.add_argument("--step", choices=("drain", "let-in", "change", "settle"), help=argparse.SUPPRESS)
    parser.add_argument("--stop", action="append", default=[], type=deployment, help=argparse.SUPPRESS)
    parser.add_argument("--how", choices=("start", "restart"), default="start", help=argparse.SUPPRESS)
    parser.add_argument("--by", default="", metavar="WHO", help="who asks for it; default: this user")
    parser.add_argument("--anyway", action="store_true", help="though somebody holds this Spark with Ansible")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    user = os.environ.get("SUDO_USER") or "root"
    why = f"by {state_writer.operator(PLACES) or user}"
    if args.name or args.step:
        if os.geteuid():
            say(f"only root may switch. Fix: sudo vllm-switch {' '.join(argv)}")
            return 2
        if not args.step and not args.anyway and (holder := state_writer.operator(PLACES)):
            say(
                f"this Spark is held by {holder} — expected: nobody else to be changing it. Fix: wait for that run, "
                f"or, if it has ended, `sudo vllm-switch {args.name} --anyway`. See docs/runbooks/operator-lock.md"
            )
            return 2
        if not args.inside and args.step in (None, "change"):
            return detached([*argv, *([] if args.by else [f"--by={user}"])])
    match args.step:
        case "drain":
            reply(json.dumps(drain_all([args.name, *args.stop], args.drain_s, why)))
        case "let-in":
            let_in(args.name)
        case "change":
            done = change(args.stop, args.name, args.memory_s, args.how, anyway=args.anyway)
            syslog.syslog(f"stopped {' and '.join(args.stop) or 'nothing'}, {args.how} of {args.name or 'nothing'}: "
                          f"{done['said'] or 'done'}")  # fmt: skip
            reply(json.dumps(done))
        case "settle":
            settled = enable_and_disable(args.name, args.stop, why)
            reply(json.dumps(settled))
            return 0 if settled["ok"] else 1
        case _ if args.name:
            return switch(args.name, args.drain_s, args.memory_s, args.by or user)
        case _:
            reply(listing(states(PLACES.deployments())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
