"""Final report of a switch: time per phase, failed gates, and the inventory edit that makes it permanent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.core.refusal import register
from vllm_spark.inventory import deployment
from vllm_spark.verify import startup

SWITCH_FAILED = register("switch-failed", runbook="switch-failed")

# The phases of a switch in their order, by the key of their seconds.
PHASES = {
    "stop_s": "stop",
    "memory_s": "memory back",
    "start_s": "start",
    "ready_s": "until ready",
    "gates_s": "gates",
    "between_s": "in between",
}


def inventory_edit(raw: object, to: str) -> str:
    """Return the inventory edit that makes the switch permanent; empty if the inventory already agrees."""
    everything = deployment.parse(raw)
    target = next(placed for placed in everything if placed.name == to)
    rivals = [other for other in everything if other is not target and set(other.hosts) & set(target.hosts)]
    still = [other.name for other in rivals if other.active]
    if target.active and not still:
        return ""
    edits = [*([] if target.active else [f"`active: true` to {to}"]), *(f"`active: false` to {name}" for name in still)]
    return f"The next deploy follows the inventory again. For {to} to stay, give {' and '.join(edits)} there."


def idle_report(runs: Sequence[Mapping[str, Any]], raw: object, to: str) -> list[str]:
    """Return the hosts that a switch leaves without a model, as one rank of a former pair. It depends on what each host
    has stopped and still runs: a host of that pair may have served something else."""
    taken = next(placed.hosts for placed in deployment.parse(raw) if placed.name == to)
    return sorted(one["host"] for one in runs if one["stop"] and not one["others"] and one["host"] not in taken)


def phase_seconds(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return phase -> seconds, and the time without an answer as `gap_s`.

    `runs` are the switch_steps.HostRun of all hosts. Hosts work in parallel, so the slowest host counts. The remainder,
    `between_s`, is the communication between controller and host."""

    def slowest(part: str, key: str) -> float:
        return max((one.get(part, {}).get(key, 0.0) for one in runs), default=0.0)

    steps = {key: slowest("steps", key) for key in ("stop_s", "memory_s", "start_s")}
    total, judging = (max((one[key] for one in runs), default=0.0) for key in ("total_s", "judged_s"))
    ready = min(judging, slowest("judged", "waited_s"))
    between = max(0.0, total - judging - sum(steps.values()))
    return {**steps, "ready_s": ready, "gates_s": judging - ready, "between_s": between, "gap_s": total}


def success_report(runs: Sequence[Mapping[str, Any]], raw: object, to: str) -> list[str]:
    """Return the report of a successful switch: the time without an answer, and the follow-up actions."""
    stopped = any(one["stop"] for one in runs)
    changed = any(one["steps"] for one in runs)
    lines = (
        [format_durations(to, runs)]
        if stopped
        else [f"{to} {'runs' if changed else 'ran already'}, and its gates hold."]
    )
    lines += [f"{host} is left without a model server." for host in idle_report(runs, raw, to)]
    return [line for line in [*lines, inventory_edit(raw, to)] if line]


def format_durations(to: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the times as one line."""
    took = phase_seconds(runs)
    parts = ", ".join(f"{phase} {took[key]:.1f}" for key, phase in PHASES.items())
    left = sum(one.get("drained", {}).get("left", 0) for one in runs)
    drained = max((one.get("drained", {}).get("drain_s", 0.0) for one in runs), default=0.0)
    cut = f", and {left} requests were cut off" if left else ""
    return (
        f"{to} holds its gates {took['gap_s']:.1f} s after the stop: {parts}. Before it {drained:.1f} s of drain{cut}."
    )


def failure_report(to: str, missed: str, restored: Mapping[str, Any], judged: Mapping[str, Any]) -> str:
    """Return what failed, and what runs now. `restored` is the output of vllm-switch for the start of `name`, the old
    deployment, empty if none returned. `judged` is the result of vllm_verify on it, empty if it has no gates."""
    what = f"the switch to {to} failed; {returned(restored, judged)}"
    fix = startup.next_step(missed, f"read the reason above it; then correct {to} in the inventory, and switch again.")
    return f"{missed}\n{SWITCH_FAILED(what=what, expected=f'{to} to hold its gates', fix=fix)!s}"


def returned(restored: Mapping[str, Any], judged: Mapping[str, Any]) -> str:
    """Return what became of the old deployment, from the same arguments as `failure_report`."""
    name = restored.get("name", "")
    if not name:
        return "nothing came back in its place"
    if not restored.get("ok", True):
        return f"{name} did not come back either: {restored['said']}"
    if not judged:
        return f"{name} is started again; it was placed by a toolkit that left no gates, so they are not judged"
    if judged.get("holds"):
        return f"{name} serves again, and its gates hold"
    return f"{name} came back and misses its gates: {judged.get('missed')}"
