#!/usr/bin/python3
"""Requests one token from a model server and removes its container if it hangs. A timer runs it on the API's host.
A server for embeddings has a vector in its place, one that sorts documents a score (engine_api.PROOFS).

/health does not reach the workers, so only a token proves that the engine lives. A full queue or a long prompt before
the request is not a hang: while the engine's own counters move between two probes, it works. A start has the deadline
of the recipe. The unit starts the container again. The count of failed starts is the breaker (starts.py); one that has
served for five minutes resets it.

    liveness NAME
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NotRequired, TypedDict

# deploy places the modules of this program there. Python adds nothing to the folder.
sys.dont_write_bytecode = True
sys.path.insert(0, "/usr/local/lib/vllm-spark/modules")

from vllm_spark.node import deployment_state, engine_api, starts  # noqa: E402  the path above leads to it
from vllm_spark.node.deployment_state import (  # noqa: E402
    DRAINING,
    FAILED,
    HUNG,
    LOADING,
    PLACES,
    SERVING,
    WANTED,
    State,
)
from vllm_spark.node.engine_api import Document, EngineAddress  # noqa: E402
from vllm_spark.node.starts import Moment, Record  # noqa: E402
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


class TokenProbe(TypedDict):
    """One probe. `progress` is the text of the engine's counters, read only after a miss; `moves` is True if it changed
    within MOVE_S. `refused`: the API serves and refuses the request. `detail` is the response. Without a `role` the
    server chats."""

    answered: bool
    refused: bool
    progress: str
    moves: bool
    running_s: float
    deadline_s: float
    detail: str
    role: NotRequired[str]


class Memory(TypedDict, total=False):
    """What one run of this program stores for the next, and what `status` reads. `works`: the counters moved although a
    token was missed. `since` is the time of the first token, `good` that it has served for GOOD_S since. `start` is the
    id of the start (starts.py); one of release 0.1.0 has none."""

    ready: bool
    misses: int
    progress: str
    works: bool
    since: float
    good: bool
    start: str


def judge(past: Memory, probe: TokenProbe) -> tuple[Memory, str]:
    """Return (what to store, why the engine hangs or an empty text). `past` is empty for a new start."""
    if probe["answered"]:
        return {"ready": True, "misses": 0}, ""
    if probe["refused"]:
        # A wrong key or model name is not a hang, and a restart does not change it.
        return {"ready": past.get("ready", False), "misses": 0}, ""
    proof = engine_api.PROOFS[probe.get("role", engine_api.CHAT)]
    # Others may have had tokens before this program had its first one. Those of the engine's own warm-up do not count.
    if not past.get("ready") and not any(map(float, proof.counted.findall(probe["progress"]))):
        late = probe["running_s"] > probe["deadline_s"]
        why = f"no {proof.word} within {probe['deadline_s']} s of its start ({probe['detail']})" if late else ""
        return {"ready": False, "misses": 0}, why
    works = probe["moves"] or past.get("progress", probe["progress"]) != probe["progress"]
    misses = 1 if works else past.get("misses", 0) + 1
    why = f"{misses} requests for a {proof.word} had no answer ({probe['detail']})" if misses >= MISSES else ""
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
    server: EngineAddress = json.loads(Path(PLACES.config, name, "liveness.json").read_text(encoding="utf-8"))
    now = deployment_state.present(name, PLACES)
    # A rank that waits for its peer has no engine.
    if now["state"] not in (LOADING, SERVING, DRAINING) or not is_active(unit):
        return 0
    record = starts.read(name, PLACES)
    file = Path(PLACES.run, name, "liveness.json")
    past = remembered(engine_api.read(file), record.id)
    memory, why = judge(past, probe_token(name, server, running_s(record, now, starts.moment(PLACES))))
    memory, becomes_good = served(past, memory, time.time())
    if starts.read(name, PLACES).id != record.id:
        return 0  # another start has begun meanwhile, and nothing of this one concerns it
    # The supervisor of a pair knows that itself.
    if becomes_good and not now["peers"]:
        starts.change(name, PLACES, starts.good)
        subprocess.run(["systemctl", "reset-failed", unit], check=False)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps({**memory, "start": record.id}), encoding="utf-8")
    new.replace(file)
    if memory["ready"] and not memory["misses"]:
        StateOf(name, PLACES).write(SERVING, after=(WANTED, LOADING), start=now["start"])
    if why:
        StateOf(name, PLACES).write(FAILED, f"{HUNG}: {why}", after=(LOADING, SERVING, DRAINING), start=now["start"])
        # <4>: a warning, which the journal of the unit keeps.
        print(f"<4>{unit} hangs: {why}; ending its container. See docs/runbooks/engine-hangs.md", flush=True)
        # `systemctl restart` would reset the count of starts, as if a person had restarted the unit.
        removal = subprocess.run(["docker", "rm", "--force", f"vllm-{name}"], check=False, stdout=subprocess.DEVNULL)
        if removal.returncode:
            # The next run tries again.
            StateOf(name, PLACES).write(now["state"], now["why"], after=(FAILED,))
            return removal.returncode
    return 0


def remembered(stored: Document, start: str) -> Memory:
    """Return what the run before has stored of this start; empty if it was another one."""
    if stored.get("start", "") != start:
        return {}
    past: Memory = {"ready": stored.get("ready", False), "misses": stored.get("misses", 0)}
    for key in ("progress", "since", "good"):
        if key in stored:
            past[key] = stored[key]
    return past


def is_active(unit: str) -> bool:
    """Return True if the unit runs."""
    return subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0


def running_s(record: Record, now: State, moment: Moment) -> float:
    """Return the seconds since the start of the engine. The time that a rank waits for its peers does not count. That
    of a start of release 0.1.0 is the time of its state."""
    if record.start:
        return moment.up - record.start.up
    return moment.day - now["since"] if now["state"] == LOADING else 0.0


def probe_token(name: str, server: EngineAddress, running: float) -> TokenProbe:
    """Request one token, and the counters if it does not come. `running` is in seconds."""
    status, text = engine_api.request_token(server, Path(PLACES.config, name, "env"))
    role = engine_api.role_of(server)
    answered, refused = engine_api.is_token(status, text, role), status in engine_api.DEFINITE
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
        "role": role,
    }


def progress(server: EngineAddress) -> str:
    """Return the counters that move while the engine works, as it prints them; empty if it does not answer."""
    return "\n".join(PROGRESS.findall(engine_api.metrics(server)))


if __name__ == "__main__":
    sys.exit(main())
