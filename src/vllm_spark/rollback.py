"""When a launch that misses its gates gives its place back to the one before, and what is said of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vllm_spark.refusal import message
from vllm_spark.spec import CONFIG_DIR


def due(plans: Collection[Mapping[str, Any]], judged: Collection[Mapping[str, Any]]) -> bool:
    """Shall the previous launch come back? `plans` and what vllm_verify said are those of all hosts of one deployment:
    the ranks of a pair change and return together."""
    missed = any(said.get("holds") is False for said in judged)
    return missed and any(plan.get("undoable") for plan in plans)


def told(missed: str, failed: Mapping[str, Any], restored: Mapping[str, Any], judged: Mapping[str, Any]) -> str:
    """What failed, what came back and whether it serves, and what to read.

    `failed` is the result of vllm_verify on the new launch, `restored` that of vllm_restore, `judged` that of
    vllm_verify on what came back, empty where that has no gates to judge.
    """
    record = restored["restored"]
    if not record:
        return missed
    name = record.get("deployment", "")
    back = f"{record.get('recipe')} with {record.get('image')} of toolkit {record.get('toolkit')}"
    report = f"{failed['report']} and " if failed.get("report") else ""
    read = f"read {report}{CONFIG_DIR}/{name}/failed/launch on the Spark"
    if not judged:
        end = "is started again; it was placed by a toolkit that left no gates, so they are not judged"
    elif judged.get("holds"):
        end = "serves again, and its gates hold"
    else:
        end = f"came back too, and misses its gates: {judged.get('missed')}"
    what = f"{name} missed its gates and was taken back; the launch before it ({back}) {end}"
    fix = f"{read}; then correct the recipe or the inventory, and deploy."
    return f"{missed}\n{message(what, 'the new launch to hold its gates', fix, runbook='rolled-back')}"
