"""Decisions about a launch that fails its gates, and the messages at the end of a rollback. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.lifecycle.rollback_target import launch_label
from vllm_spark.node.host_layout import CONFIG_DIR, FAILED
from vllm_spark.verify import startup

LEFT_STOPPED = register("left-stopped", runbook="rolled-back")
ROLLED_BACK = register("rolled-back", runbook="rolled-back")

# A launch script on the host is not the one that was deployed under its fingerprint.
EDITED = "Its launch was edited by hand after its deploy, and it runs as edited"


@dataclass(frozen=True, slots=True)
class RollbackDecision:
    """The actions after the gates of a launch are judged on one host."""

    record: bool  # write the judged gates to the history
    restore: bool  # another launch takes its place again
    go_back: bool  # the deployment whose place it took returns instead
    settle: bool  # a boot starts this deployment and no longer the one whose place it took
    missed: bool  # a gate of this launch failed. An action that returns the key `failed` fails itself

    def to_json(self) -> dict[str, bool]:
        """Return the decision as an action returns it. `follows`: this host has anything to do."""
        actions = asdict(self)
        return {**actions, "follows": any(actions.values())}


def decide(  # noqa: PLR0913  the state of one host, and that of its deployment
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    plans: Collection[Mapping[str, Any]],
    results: Collection[Mapping[str, Any]],
    *,
    enabled: bool,
    replacement: Mapping[str, Any],
) -> RollbackDecision:
    """Decide after a deploy. `plan` and `result` (of vllm_verify, without `holds` if it was skipped) are those of the
    host, `plans` and `results` those of all hosts of the deployment, `replacement` a Replacement as JSON. A run that
    changed nothing and whose gates hold leaves no entry in the history, unless its last entry is another one: the run
    before was interrupted, or failed."""
    failed = result.get("holds") is False
    any_failed = any(one.get("holds") is False for one in results)
    # What served before this run comes before an earlier launch of this deployment.
    go_back = enabled and any_failed and bool(replacement.get("replaces") and replacement["may_return"])
    restore = enabled and not go_back and should_roll_back(plans, results)
    return RollbackDecision(
        record="holds" in result and (failed or not plan["settled"] or not plan["proven"]),
        restore=restore,
        go_back=go_back,
        settle=bool(replacement.get("settle")) and (restore or not any_failed),
        missed=failed,
    )


def decide_by_hand(results: Collection[Mapping[str, Any]]) -> RollbackDecision:
    """Decide at the end of a manual rollback: the launch that it replaced returns on all hosts if a gate of the
    restored one failed on any."""
    failed = any(result.get("holds") is False for result in results)
    return RollbackDecision(record=False, restore=failed, go_back=False, settle=False, missed=failed)


def should_roll_back(plans: Collection[Mapping[str, Any]], results: Collection[Mapping[str, Any]]) -> bool:
    """Return True if the previous launch must be restored. Arguments hold one entry per host of the deployment,
    because the ranks of a pair change and return together."""
    failed = any(result.get("holds") is False for result in results)
    return failed and any(plan.get("undoable") for plan in plans)


def failure_report(
    missed: str,
    failed: Mapping[str, Any],
    restored: Mapping[str, Any],
    judged: Mapping[str, Any],
    stopped: Sequence[str] = (),
) -> str:
    """Return the message after a failed deploy: what failed, what was restored and whether it serves, what to read.

    `missed` names the failed gates. `failed` is the result of vllm_verify on the new launch, `restored` that of
    vllm_restore, `judged` that of vllm_verify on the restored launch, without `holds` if it has no gates. `stopped` are
    the deployments whose place the new launch took, and which stay stopped.
    """
    record = restored["restored"]
    if not record:
        return "\n".join([missed, *(str(_left_stopped(name)) for name in stopped)])
    name = record.get("deployment", "")
    back = f"{record.get('recipe')} with {record.get('image')} of toolkit {record.get('toolkit')}"
    report = f"{failed['report']} and " if failed.get("report") else ""
    read = f"read {report}{CONFIG_DIR}/{name}/{FAILED}/launch on the Spark"
    if "holds" not in judged:
        end = "is started again; it was placed by a toolkit that left no gates, so they are not judged"
    elif judged.get("holds"):
        end = "serves again, and its gates hold"
    else:
        end = f"came back too, and misses its gates: {judged.get('missed')}"
    notes = [EDITED] if restored.get("edited") else []
    # vllm_restore gives an open server a key that nobody knows, because one without a key is everyone's.
    if gone := restored.get("gone"):
        notes.append(f"It came back without the secrets that vllm_secrets no longer has: {', '.join(gone)}")
    noted = "".join(f". {note}" for note in notes)
    what = f"{name} missed its gates and was taken back; the launch before it ({back}) {end}{noted}"
    fix = startup.next_step(missed, f"{read}; then correct the recipe or the inventory, and deploy.")
    return f"{missed}\n{ROLLED_BACK(what=what, expected='a launch that passes its gates', fix=fix)!s}"


def _left_stopped(name: str) -> Refusal:
    return LEFT_STOPPED(
        what=f"{name} was stopped by this deploy and stays stopped",
        expected="a server that passes its gates",
        fix=Fix(f"ansible-playbook switch.yml -e to={name}", "It brings it back."),
    )


def ended(target: Mapping[str, Any], results: Collection[Mapping[str, Any]], again: Mapping[str, Any]) -> str:
    """Return the final message of a manual rollback on one host. `target` is a RollbackTarget as JSON, `results` those
    of vllm_verify on the restored launch on all hosts, `again` the one on the launch that returned after a failure."""
    name = target["deployment"]
    if all(result.get("holds", True) for result in results):
        return (
            f"{name} runs {launch_label(target['record'])} again, and its gates hold. "
            f"{EDITED + '. ' if target.get('edited') else ''}If the inventory still describes "
            "the other launch, the next `deploy` restores that one: correct the inventory "
            "(docs/operations/roll-back.md). "
            "A second rollback also returns to it."
        )
    missed = "\n".join(dict.fromkeys(result["missed"] for result in results if result.get("missed")))
    if again.get("holds"):
        end = "serves again, and its gates hold"
    else:
        end = f"came back too, and misses its gates: {again.get('missed') or 'it was not judged'}"
    what = f"the launch before of {name} missed its gates; {launch_label(target['current'])} {end}"
    fix = f"read what it missed; it is kept in {CONFIG_DIR}/{name}/previous."
    return f"{missed}\n{ROLLED_BACK(what=what, expected='a launch that still passes its gates', fix=fix)!s}"
