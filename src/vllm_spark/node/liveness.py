#!/usr/bin/python3
"""Asks a model server for one token, and ends its container when it hangs. Run by a timer, where the API is.

/health does not reach the workers, so only a token proves that the engine lives. A full queue or a long prompt in front
of it is no hang: while the engine's own counters move between two looks, it works. A start is given the recipe's
deadline. The unit starts the container anew, and its limit of starts is the breaker: after the fifth in an hour it
stays down, and the journal says so.

    liveness NAME
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG_DIR = Path("/etc/vllm-spark")
RUN_DIR = Path("/run/vllm-spark")

# One token, with a queue before it.
TIMEOUT_S = 20
# One miss may be a hiccup.
MISSES = 2

# What moves with every step of the engine, in a long prefill too, and not with the arrival of a request.
PROGRESS = re.compile(
    r"^vllm:(?:prompt_tokens_total|generation_tokens_total|iteration_tokens_total_count|kv_cache_usage_perc)\{.*$",
    re.MULTILINE,
)
PROPERTIES = "ActiveState,InvocationID,ActiveEnterTimestampMonotonic"

Document = dict[str, Any]


def judge(past: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Document, str]:
    """(what to remember, why to restart or nothing). `past` is of the same start of the unit, or empty; `now` has
    `answered`, `progress` (the engine's counters as text, asked on a miss alone), `running_s`, `deadline_s`, `said`."""
    if now["answered"]:
        return {"ready": True, "misses": 0}, ""
    if not past.get("ready"):
        late = now["running_s"] > now["deadline_s"]
        why = f"no token within {now['deadline_s']} s of its start ({now['said']})" if late else ""
        return {"ready": False, "misses": 0}, why
    works = past.get("progress", now["progress"]) != now["progress"]
    misses = 1 if works else past.get("misses", 0) + 1
    why = f"{misses} requests for a token had no answer ({now['said']})" if misses >= MISSES else ""
    return {"ready": True, "misses": misses, "progress": now["progress"]}, why


def main() -> int:
    name = sys.argv[1]
    unit = f"vllm@{name}.service"
    wanted = json.loads((CONFIG_DIR / name / "liveness.json").read_text(encoding="utf-8"))
    state = unit_state(unit)
    pair = read(RUN_DIR / name / "state.json")
    if state.get("ActiveState") != "active" or pair.get("state") in {"waiting", "refused", "ended"}:
        return 0
    kept = RUN_DIR / name / "liveness.json"
    past = read(kept)
    if past.get("invocation") != state["InvocationID"]:
        past = {}
    memory, why = judge(past, look(name, wanted, running_s(state, pair)))
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept.write_text(json.dumps({**memory, "invocation": state["InvocationID"]}), encoding="utf-8")
    if why:
        # <4>: a warning, which is what the unit's journal keeps.
        print(f"<4>{unit} hangs: {why}; ending its container. See docs/runbooks/engine-hangs.md", flush=True)
        # Not `systemctl restart`: that is what a person does, and begins the count of starts anew.
        subprocess.run(["docker", "rm", "--force", f"vllm-{name}"], check=True, stdout=subprocess.DEVNULL)
    return 0


def unit_state(unit: str) -> dict[str, str]:
    shown = subprocess.run(
        ["systemctl", "show", "--property", PROPERTIES, unit], capture_output=True, text=True, check=True
    )
    return dict(line.split("=", 1) for line in shown.stdout.splitlines())


def running_s(state: Mapping[str, str], pair: Mapping[str, Any]) -> float:
    """Seconds since the engine's start: a rank's waiting for its peer does not count."""
    active_s = time.clock_gettime(time.CLOCK_MONOTONIC) - int(state["ActiveEnterTimestampMonotonic"] or 0) / 1e6
    return min(active_s, time.time() - pair["since"]) if pair.get("state") == "starting" else active_s


def look(name: str, wanted: Mapping[str, Any], running: float) -> Document:
    key = api_key(CONFIG_DIR / name / "env")
    body = json.dumps({"model": wanted["model"], "prompt": "1", "max_tokens": 1, "temperature": 0})
    status, text = ask(wanted, "POST", "/v1/completions", body, key)
    answered = status == http.client.OK and '"choices"' in text
    return {
        "answered": answered,
        "progress": "" if answered else progress(wanted),
        "running_s": running,
        "deadline_s": wanted["deadline_s"],
        "said": text[:200] if status is None else f"status {status}",
    }


def progress(wanted: Mapping[str, Any]) -> str:
    """The counters that move while the engine works, as it prints them; empty where it does not tell."""
    status, text = ask(wanted, "GET", "/metrics", None, "")
    return "\n".join(PROGRESS.findall(text)) if status == http.client.OK else ""


def ask(wanted: Mapping[str, Any], method: str, path: str, body: str | None, key: str) -> tuple[int | None, str]:
    """(status, text), or (None, what went wrong)."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection = http.client.HTTPConnection(wanted["address"], wanted["port"], timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return None, str(error) or type(error).__name__
    finally:
        connection.close()


def api_key(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.startswith("VLLM_API_KEY="):
            return line.partition("=")[2]
    return ""


def read(path: Path) -> Document:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    sys.exit(main())
