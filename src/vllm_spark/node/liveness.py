#!/usr/bin/python3
"""Requests one token from a model server and removes its container if it hangs. A timer runs it on the API's host.

/health does not reach the workers, so only a token proves that the engine lives. A full queue or a long prompt before
the request is not a hang: while the engine's own counters move between two probes, it works. A start has the deadline
of the recipe. The unit starts the container again, and its start limit is the breaker: after the fifth start in an
hour it stays down, and the journal says so. A start that has served for five minutes resets that count.

    liveness NAME
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import deployment_state, engine_api  # noqa: E402  the path above leads to it
from vllm_spark.node.deployment_state import (  # noqa: E402
    DRAINING,
    FAILED,
    LOADING,
    PLACES,
    SERVING,
    WANTED,
    State,
)
from vllm_spark.node.engine_api import Server  # noqa: E402
from vllm_spark.node.state_writer import StateOf  # noqa: E402
from vllm_spark.node.unit_limits import GOOD_S  # noqa: E402

# One miss may be a short disturbance.
MISSES = 2
# Between two readings of the counters after a miss. A working engine moves them with every step.
MOVE_S = 5.0

# Counters that move with every step of the engine, also in a long prefill, and not with the arrival of a request.
PROGRESS = re.compile(
    r"^vllm:(?:prompt_tokens_total|generation_tokens_total|iteration_tokens_total_count|kv_cache_usage_perc)\{.*$",
    re.MULTILINE,
)
# Tokens that the engine has returned. The requests of its own warm-up do not count.
GENERATED = re.compile(r"^vllm:generation_tokens_total\{.*\} (\S+)$", re.MULTILINE)
PROPERTIES = "ActiveState,InvocationID,ActiveEnterTimestampMonotonic"


class TokenProbe(TypedDict):
    """One probe. `progress` is the text of the engine's counters, read only after a miss; `moves` is True if it changed
    within MOVE_S. `refused`: the API serves and refuses the request. `detail` is the response."""

    answered: bool
    refused: bool
    progress: str
    moves: bool
    running_s: float
    deadline_s: float
    detail: str


class Memory(TypedDict, total=False):
    """What one run of this program stores for the next, and what `status` reads. `works`: the counters moved although a
    token was missed. `since` is the time of the first token, `good` that the start limit was reset since. `invocation`
    is systemd's id of the unit's start."""

    ready: bool
    misses: int
    progress: str
    works: bool
    since: float
    good: bool
    invocation: str


def judge(past: Memory, probe: TokenProbe) -> tuple[Memory, str]:
    """Return (what to store, why the engine hangs or an empty text). `past` is empty for a new start of the unit."""
    if probe["answered"]:
        return {"ready": True, "misses": 0}, ""
    if probe["refused"]:
        # A wrong key or model name is not a hang, and a restart does not change it.
        return {"ready": past.get("ready", False), "misses": 0}, ""
    # Others may have had tokens before this program had its first one.
    if not past.get("ready") and not any(map(float, GENERATED.findall(probe["progress"]))):
        late = probe["running_s"] > probe["deadline_s"]
        why = f"no token within {probe['deadline_s']} s of its start ({probe['detail']})" if late else ""
        return {"ready": False, "misses": 0}, why
    works = probe["moves"] or past.get("progress", probe["progress"]) != probe["progress"]
    misses = 1 if works else past.get("misses", 0) + 1
    why = f"{misses} requests for a token had no answer ({probe['detail']})" if misses >= MISSES else ""
    return {"ready": True, "misses": misses, "progress": probe["progress"], "works": works}, why


def served(past: Memory, memory: Memory, now: float) -> tuple[Memory, bool]:
    """Return (the memory with the times of this start, True if the start has become a good one with this probe)."""
    if not memory["ready"]:
        return memory, False
    since, good = past.get("since", now), past.get("good", False)
    becomes_good = not good and not memory["misses"] and now - since >= GOOD_S
    timed: Memory = {**memory, "since": since, "good": good or becomes_good}
    return timed, becomes_good


def main() -> int:
    """Probe the deployment once. Removes its container if the engine hangs; systemd then restarts the unit."""
    name = sys.argv[1]
    unit = f"vllm@{name}.service"
    server: Server = json.loads(Path(PLACES.config, name, "liveness.json").read_text(encoding="utf-8"))
    state, now = unit_state(unit), deployment_state.present(name, PLACES)
    # A rank that waits for its peer has no engine. The state of a start by an older toolkit is not written.
    if state.get("ActiveState") != "active" or (now["written"] and now["state"] not in (LOADING, SERVING, DRAINING)):
        return 0
    file = Path(PLACES.run, name, "liveness.json")
    stored = engine_api.read(file)
    past: Memory = {}
    if stored.get("invocation") == state["InvocationID"]:
        past = {"ready": stored.get("ready", False), "misses": stored.get("misses", 0)}
        for key in ("progress", "since", "good"):
            if key in stored:
                past[key] = stored[key]
    memory, why = judge(past, probe_token(name, server, running_s(state, now)))
    memory, becomes_good = served(past, memory, time.time())
    # The supervisor of a pair resets its own count, on both Sparks.
    if becomes_good and not now["peer"]:
        subprocess.run(["systemctl", "reset-failed", unit], check=False)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({**memory, "invocation": state["InvocationID"]}), encoding="utf-8")
    new.replace(file)
    if memory["ready"] and not memory["misses"]:
        StateOf(name, PLACES).write(SERVING, after=(WANTED, LOADING))
    if why:
        StateOf(name, PLACES).write(FAILED, f"it hung: {why}", after=(LOADING, SERVING, DRAINING))
        # <4>: a warning, which the journal of the unit keeps.
        print(f"<4>{unit} hangs: {why}; ending its container. See docs/runbooks/engine-hangs.md", flush=True)
        # `systemctl restart` would reset the count of starts, as if a person had restarted the unit.
        removal = subprocess.run(["docker", "rm", "--force", f"vllm-{name}"], check=False, stdout=subprocess.DEVNULL)
        if removal.returncode:
            # The next run tries again.
            StateOf(name, PLACES).write(now["state"], now["why"], after=(FAILED,))
            return removal.returncode
    return 0


def unit_state(unit: str) -> dict[str, str]:
    """Return PROPERTIES of the unit."""
    result = subprocess.run(
        ["systemctl", "show", "--property", PROPERTIES, unit], capture_output=True, text=True, check=True
    )
    return dict(line.split("=", 1) for line in result.stdout.splitlines())


def running_s(state: dict[str, str], now: State) -> float:
    """Return the seconds since the start of the engine. The time that a rank waits for its peer does not count."""
    active_s = time.clock_gettime(time.CLOCK_MONOTONIC) - int(state["ActiveEnterTimestampMonotonic"] or 0) / 1e6
    return min(active_s, time.time() - now["since"]) if now["state"] == LOADING else active_s


def probe_token(name: str, server: Server, running: float) -> TokenProbe:
    """Request one token, and the counters if it does not come. `running` is in seconds."""
    status, text = engine_api.request_token(server, Path(PLACES.config, name, "env"))
    answered, refused = engine_api.is_token(status, text), status in engine_api.DEFINITE
    before = "" if answered or refused else progress(server)
    if before:
        time.sleep(MOVE_S)
    after = progress(server) if before else ""
    return {
        "answered": answered,
        "refused": refused,
        "progress": after or before,
        "moves": bool(after) and after != before,
        "running_s": running,
        "deadline_s": server["deadline_s"],
        "detail": f"status {status}" if status else text[:200],
    }


def progress(server: Server) -> str:
    """Return the counters that move while the engine works, as it prints them; empty if it does not answer."""
    return "\n".join(PROGRESS.findall(engine_api.metrics(server)))


if __name__ == "__main__":
    sys.exit(main())
