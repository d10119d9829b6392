"""When a launch that misses its gates gives its place back to the one before, which launch an operator's rollback
brings back, and what is said of both. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.core.host_layout import CONFIG_DIR
from vllm_spark.core.refusal import Refusal, RefusalKind, RefusedError, register
from vllm_spark.lifecycle.installed import InstalledState, find, image_of

ROLLBACK_ANOTHER_RUNS = register("rollback-another-runs", runbook="rollback-refused")
ROLLBACK_FILES_GONE = register("rollback-files-gone", runbook="rollback-refused")
ROLLBACK_HALF_A_PAIR = register("rollback-half-a-pair", runbook="rollback-refused")
ROLLBACK_IMAGE_GONE = register("rollback-image-gone", runbook="rollback-refused")
ROLLBACK_NOTHING_BEFORE = register("rollback-nothing-before", runbook="rollback-refused")
ROLLBACK_NO_DOCKER = register("rollback-no-docker", runbook="rollback-refused")
ROLLBACK_NO_GATES = register("rollback-no-gates", runbook="rollback-refused")
ROLLBACK_TWO_IMAGES = register("rollback-two-images", runbook="rollback-refused")
ROLLBACK_TWO_LAUNCHES = register("rollback-two-launches", runbook="rollback-refused")
ROLLBACK_UNKNOWN = register("rollback-unknown", runbook="rollback-refused")
ROLLBACK_WHICH = register("rollback-which", runbook="rollback-refused")
ROLLED_BACK = register("rolled-back", runbook="rolled-back")

CURRENT, PREVIOUS, SWAPPING = "current", "previous", "swapping"
RUNS = ("active", "activating", "reloading")


@dataclass(frozen=True, slots=True)
class RollbackDecision:
    """What follows from the judged gates of a launch on one host."""

    record: bool  # write the judged gates to the history
    restore: bool  # another launch takes its place again
    missed: bool  # a gate of this launch failed. An action that returns the key `failed` fails itself

    def to_json(self) -> dict[str, bool]:
        """Return the decision as an action returns it."""
        return asdict(self)


def decide(
    plan: Mapping[str, Any],
    result: Mapping[str, Any],
    plans: Collection[Mapping[str, Any]],
    results: Collection[Mapping[str, Any]],
    *,
    enabled: bool,
) -> RollbackDecision:
    """Decide after a deploy. `plan` and `result` (of vllm_verify, without `holds` if it was skipped) are those of the
    host, `plans` and `results` those of all hosts of the deployment. A run that changed nothing and whose gates hold
    leaves no entry in the history."""
    failed = result.get("holds") is False
    return RollbackDecision(
        record="holds" in result and (failed or not plan["settled"]),
        restore=enabled and should_roll_back(plans, results),
        missed=failed,
    )


def decide_by_hand(results: Collection[Mapping[str, Any]]) -> RollbackDecision:
    """Decide at the end of a manual rollback: the launch that it replaced returns on all hosts if a gate of the
    restored one failed on any."""
    failed = any(result.get("holds") is False for result in results)
    return RollbackDecision(record=False, restore=failed, missed=failed)


def should_roll_back(plans: Collection[Mapping[str, Any]], results: Collection[Mapping[str, Any]]) -> bool:
    """Return True if the previous launch must be restored. Arguments hold one entry per host of the deployment,
    because the ranks of a pair change and return together."""
    failed = any(result.get("holds") is False for result in results)
    return failed and any(plan.get("undoable") for plan in plans)


def failure_report(
    missed: str, failed: Mapping[str, Any], restored: Mapping[str, Any], judged: Mapping[str, Any]
) -> str:
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
    return f"{missed}\n{ROLLED_BACK(what=what, expected='the new launch to hold its gates', fix=fix)!s}"


# --- by hand


@dataclass(frozen=True, slots=True)
class RollbackTarget:
    """One host's way back: `to` and `back` are fingerprints, of the launch that comes and of the one that would return
    if it misses a gate; `finishing` says that a rollback was cut off and is gone on with."""

    deployment: str
    folder: str
    unit: str
    env_path: str
    to: str
    back: str
    record: Mapping[str, Any]
    current: Mapping[str, Any]
    finishing: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """What an operator reads before anything happens."""
        verb = "goes on to" if self.finishing else "goes back to"
        return f"{self.deployment} {verb} {named(self.record)}; {named(self.current)} becomes what was before"


def named(record: Mapping[str, Any]) -> str:
    """A launch as an operator knows it."""
    launch = str(record.get("launch", ""))[:12]
    return f"{record.get('recipe')} with {image_of(record)} of toolkit {record.get('toolkit')} (launch {launch})"


def targets(boxes: Mapping[str, InstalledState], name: str = "") -> dict[str, RollbackTarget]:
    """By host the way back of the deployment `name`, of all hosts of this run that have it; without a name, of the one
    that runs. Raises RefusedError with every reason, before anything is stopped."""
    wanted = name or _only_one(boxes)
    held = {host: box for host, box in boxes.items() if wanted in box["deployments"]}
    refused = list(_unknown(boxes, wanted)) if not held else []
    refused += [refusal for host, box in held.items() for refusal in _refusals(host, box, wanted)]
    if refused:
        raise RefusedError(refused)
    # A pair's ranks have one fingerprint; where a run was cut off on one of them, it is that one's target.
    begun = {host: box["deployments"][wanted]["launches"].get(SWAPPING) for host, box in held.items()}
    target = next((launch["record"]["launch"] for launch in begun.values() if launch), "")
    found = {host: _way(box, wanted, target) for host, box in held.items()}
    refused = list(_pair(held, found, wanted))
    if refused:
        raise RefusedError(refused)
    return found


def _only_one(boxes: Mapping[str, InstalledState]) -> str:
    running = sorted({name for box in boxes.values() for name in _running(box)})
    known = sorted({name for box in boxes.values() for name in box["deployments"]})
    candidates = running or known
    if len(candidates) == 1:
        return candidates[0]
    seen = f"{', '.join(running)} run" if running else f"{', '.join(known) or 'no deployment'} is there and none runs"
    raise RefusedError(
        [
            _refusal(
                ROLLBACK_WHICH,
                f"rollback was given no deployment, and on {', '.join(boxes)} {seen}",
                "one, because each is taken back by itself",
                "-e deployment=NAME, or -l HOST.",
            )
        ]
    )


def _running(box: InstalledState) -> list[str]:
    return [
        unit.removeprefix("vllm@").removesuffix(".service")
        for unit, state in box["units"].items()
        if unit.startswith("vllm@") and state in RUNS
    ]


def _enabled(box: InstalledState) -> list[str]:
    """By the links that `systemctl enable` makes."""
    links = [path.rpartition("/")[2] for path in box["unit_files"] if ".wants/" in path]
    return [link.removeprefix("vllm@").removesuffix(".service") for link in links]


def _unknown(boxes: Mapping[str, InstalledState], name: str) -> Iterator[Refusal]:
    here = sorted({known for box in boxes.values() for known in box["deployments"]})
    yield _refusal(
        ROLLBACK_UNKNOWN,
        f"there is no deployment {name} on {', '.join(boxes)}",
        f"one of {', '.join(here) or 'none: nothing was ever deployed there'}",
        "name one of these, or limit to another host.",
    )


def _refusals(host: str, box: InstalledState, name: str) -> Iterator[Refusal]:
    """Why this host has no way back."""
    kept = box["deployments"][name]["launches"]
    launch = kept.get(SWAPPING) or kept.get(PREVIOUS)
    if others := sorted({*_running(box), *_enabled(box)} - {name}):
        yield _refusal(
            ROLLBACK_ANOTHER_RUNS,
            f"{', '.join(others)} runs on {host}, or would with the next boot",
            f"{name}, because a Spark's memory holds one model",
            f"switch to {name} first: ansible-playbook switch.yml -e to={name}.",
        )
    if box["docker"]["error"]:
        yield _refusal(
            ROLLBACK_NO_DOCKER,
            f"Docker does not answer on {host}: {box['docker']['error']}",
            "it to tell whether the image is there",
            f"ssh {host} sudo systemctl start docker.",
        )
        return
    if not launch or not launch["record"].get("launch") or not launch["runnable"]:
        yield _refusal(
            ROLLBACK_NOTHING_BEFORE,
            f"{host} has no launch of {name} before this one",
            f"{CONFIG_DIR}/{name}/previous, which deploy keeps when the launch changes",
            "deploy the inventory of that day: docs/operations/roll-back.md.",
        )
        return
    image = image_of(launch["record"])
    if find(box, image) is None:
        yield _refusal(
            ROLLBACK_IMAGE_GONE,
            f"{image}, which the launch before ran, is not on {host} any more",
            "it on the box, because a rollback fetches nothing",
            "deploy the inventory of that day, which pulls or builds it: docs/operations/roll-back.md.",
        )
    for why in launch["lacking"]:
        yield _refusal(
            ROLLBACK_FILES_GONE,
            f"the launch before cannot read its files on {host}: {why}",
            "all that it mounts to be there, because a rollback fetches nothing",
            "fetch the model at that commit again, as the runbook says.",
        )
    if not launch["gates"]:
        yield _refusal(
            ROLLBACK_NO_GATES,
            f"the launch before on {host} was placed by a toolkit that left no gates.json",
            "one, because nothing counts as serving until its gates hold",
            "deploy the inventory of that day: docs/operations/roll-back.md.",
        )


def _way(box: InstalledState, name: str, target: str) -> RollbackTarget:
    kept, folder = box["deployments"][name]["launches"], box["deployments"][name]["folder"]
    records = {place: kept[place]["record"] for place in (CURRENT, PREVIOUS, SWAPPING) if place in kept}
    to = target or records[PREVIOUS]["launch"]
    before: Mapping[str, Any] = next((record for record in records.values() if record.get("launch") == to), {})
    # Of a run that was cut off, whichever of the two the box does not go to.
    others = (record for record in records.values() if record.get("launch") not in (to, None))
    current: Mapping[str, Any] = next(others, {})
    return RollbackTarget(
        deployment=name,
        folder=folder,
        unit=f"vllm@{name}.service",
        env_path=f"{folder}/env",
        to=to,
        back=current.get("launch", ""),
        record=before,
        current=current,
        finishing=bool(target),
    )


def _pair(held: Mapping[str, InstalledState], found: Mapping[str, RollbackTarget], name: str) -> Iterator[Refusal]:
    """Why the hosts that have a deployment cannot go back together, as those of a pair must."""
    launches = {host: _target(box["deployments"][name]["launches"], found[host].to) for host, box in held.items()}
    pairs = {host: launch["needs"]["peer"] for host, launch in launches.items() if launch["needs"]["pair"]}
    if not pairs:
        return
    hosts = ", ".join(sorted(held))
    if len(pairs) != 2 or len(held) != 2:  # noqa: PLR2004  a pair
        absent = ", ".join(sorted({peer for peer in pairs.values() if peer not in held})) or "its other half"
        yield _refusal(
            ROLLBACK_HALF_A_PAIR,
            f"the launch before of {name} is a pair's, and this run has {hosts} of it",
            "both Sparks, because a pair is one service",
            f"run the same command with {absent} in -l, too.",
        )
        return
    if len({way.to for way in found.values()}) > 1 or any(not way.record for way in found.values()):
        seen = ", ".join(f"{host} has {way.to[:12]}" for host, way in found.items())
        yield _refusal(
            ROLLBACK_TWO_LAUNCHES,
            f"the launches before of {name} are not those of one pair: {seen}",
            "one fingerprint on both",
            "deploy the inventory of that day: docs/operations/roll-back.md.",
        )
        return
    images = {host: find(held[host], image_of(way.record)) for host, way in found.items()}
    if len({image["id"] for image in images.values() if image}) > 1:
        yield _refusal(
            ROLLBACK_TWO_IMAGES,
            f"{image_of(next(iter(found.values())).record)} is not the same image on {hosts}",
            "one image ID, because the ranks exchange pickled Python objects",
            "deploy the inventory of that day, which gives the worker the head's.",
        )


def _target(kept: Mapping[str, Any], to: str) -> Mapping[str, Any]:
    """The launch of that fingerprint; the one before where this host has none such."""
    found = [kept[place] for place in (PREVIOUS, SWAPPING, CURRENT) if place in kept]
    return next((launch for launch in found if launch["record"].get("launch") == to), found[0])


def _refusal(kind: RefusalKind, what: str, expected: str, fix: str) -> Refusal:
    return kind(what=what, expected=expected, fix=fix)


def ended(way: Mapping[str, Any], judged: Collection[Mapping[str, Any]], again: Mapping[str, Any]) -> str:
    """The last word of a rollback by hand on one host. `judged` is what vllm_verify said of the launch that came back,
    on all hosts; `again` what it said of the one that returned where a gate missed."""
    name = way["deployment"]
    if all(said.get("holds", True) for said in judged):
        return (
            f"{name} runs {named(way['record'])} again, and its gates hold. The inventory may still ask for the other: "
            "`deploy` would bring that back, so bring the inventory into agreement (docs/operations/roll-back.md). "
            "A second rollback returns to it, too."
        )
    missed = "\n".join(said["missed"] for said in judged if said.get("missed"))
    if again.get("holds"):
        end = "serves again, and its gates hold"
    else:
        end = f"came back too, and misses its gates: {again.get('missed') or 'it was not judged'}"
    what = f"the launch before of {name} missed its gates; {named(way['current'])} {end}"
    fix = f"read what it missed; it is kept in {CONFIG_DIR}/{name}/previous."
    return (
        f"{missed}\n{ROLLED_BACK(what=what, expected='it to hold the gates that it held when it was new', fix=fix)!s}"
    )
