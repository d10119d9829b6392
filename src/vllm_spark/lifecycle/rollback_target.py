"""The launch that a manual rollback restores, or why there is none. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_spark.core.refusal import Fix, Refusal, RefusedError, register
from vllm_spark.core.text import DIGEST_DIGITS, one_of, short_digest
from vllm_spark.lifecycle import lending
from vllm_spark.lifecycle.installed import InstalledState, find, image_of
from vllm_spark.node import launch_difference, lease
from vllm_spark.node.host_layout import CONFIG_DIR, CURRENT, PREVIOUS, RUNNING, SWAPPING, deployment_of

ROLLBACK_ANOTHER_RUNS = register("rollback-another-runs", runbook="rollback-refused")
ROLLBACK_FILES_GONE = register("rollback-files-gone", runbook="rollback-refused")
ROLLBACK_HALF_A_PAIR = register("rollback-half-a-pair", runbook="rollback-refused")
ROLLBACK_IMAGE_GONE = register("rollback-image-gone", runbook="rollback-refused")
ROLLBACK_NEVER_HELD = register("rollback-never-held", runbook="rollback-refused")
ROLLBACK_NOTHING_BEFORE = register("rollback-nothing-before", runbook="rollback-refused")
ROLLBACK_NO_DOCKER = register("rollback-no-docker", runbook="rollback-refused")
ROLLBACK_NO_GATES = register("rollback-no-gates", runbook="rollback-refused")
ROLLBACK_SECRET_GONE = register("rollback-secret-gone", runbook="rollback-refused")
ROLLBACK_TWO_IMAGES = register("rollback-two-images", runbook="rollback-refused")
ROLLBACK_TWO_LAUNCHES = register("rollback-two-launches", runbook="rollback-refused")
ROLLBACK_UNKNOWN = register("rollback-unknown", runbook="rollback-refused")
ROLLBACK_WHICH = register("rollback-which", runbook="rollback-refused")


@dataclass(frozen=True, slots=True)
class RollbackTarget:
    """The launch that one host returns to. `to` and `back` are fingerprints: of the launch that is restored, and of the
    one that returns if it fails a gate. `record` and `current` are their records. `finishing`: an interrupted rollback
    is completed. `edited`: the script of the launch was edited by hand. `difference` is the change of the command."""

    deployment: str
    folder: str
    to: str
    back: str
    record: Mapping[str, Any]
    current: Mapping[str, Any]
    finishing: bool
    edited: bool = False
    difference: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """Return the line that an operator reads before anything changes."""
        verb = "goes on" if self.finishing else "goes back"
        current = str(self.current.get("launch", ""))[:DIGEST_DIGITS]
        label = f"It runs {launch_label(self.record)}; launch {current} becomes the previous launch"
        edited = ". Its launch was edited by hand after its deploy, and will run as edited" if self.edited else ""
        return f"{self.deployment} {verb}: {self.difference}. {label}{edited}"


def launch_label(record: Mapping[str, Any]) -> str:
    """Return the recipe, image, toolkit and short fingerprint of a launch."""
    launch, image = str(record.get("launch", ""))[:DIGEST_DIGITS], short_digest(image_of(record))
    return f"{record.get('recipe')} with image {image} of toolkit {record.get('toolkit')} (launch {launch})"


def targets(
    hosts: Mapping[str, InstalledState], name: str = "", secrets: Mapping[str, Collection[str]] | None = None
) -> dict[str, RollbackTarget]:
    """Return the rollback target of each host of this run that has the deployment. `name` defaults to the running
    deployment. `secrets` has the names of those with a value today, of the hosts that are judged by them.

    Raises RefusedError with every reason."""
    name = name or _only_one(hosts)
    involved = {host: state for host, state in hosts.items() if name in state["deployments"]}
    if not involved:
        here = sorted({known for state in hosts.values() for known in state["deployments"]})
        raise ROLLBACK_UNKNOWN.error(
            what=f"there is no deployment {name} on {', '.join(hosts)}",
            expected=one_of(here, "a deployment; nothing was ever deployed there"),
            fix="name one of these, or limit to another host.",
        )
    limit = ",".join(involved)
    refused = [refusal for host, state in involved.items() for refusal in _refusals(host, state, name, limit)]
    refused += [
        refusal for host, known in (secrets or {}).items() for refusal in _gone(involved.get(host), name, known)
    ]
    if refused:
        raise RefusedError(refused)
    # The ranks of a pair have one fingerprint. If a rollback was interrupted on one rank, its target is everyone's.
    interrupted = [state["deployments"][name]["launches"].get(SWAPPING) for state in involved.values()]
    fingerprint = next((launch["record"]["launch"] for launch in interrupted if launch), "")
    chosen = {host: _target_of(state, name, fingerprint) for host, state in involved.items()}
    refused = list(_pair(involved, chosen, name))
    if refused:
        raise RefusedError(refused)
    return chosen


def _only_one(hosts: Mapping[str, InstalledState]) -> str:
    running = sorted({name for state in hosts.values() for name in _running(state)})
    known = sorted({name for state in hosts.values() for name in state["deployments"]})
    candidates = running or known
    if len(candidates) == 1:
        return candidates[0]
    # One alone has been returned.
    observed = (
        f"{', '.join(candidates)} {'run' if running else 'exist and none runs'}" if candidates else "there is none"
    )
    raise ROLLBACK_WHICH.error(
        what=f"no deployment is named, and on {', '.join(hosts)} {observed}",
        expected="one deployment, because each is rolled back alone",
        fix=f"{' or '.join(f'`-e deployment={each}`' for each in candidates) or '-l HOST'}.",
    )


def _running(state: InstalledState) -> list[str]:
    return [
        deployment_of(unit) for unit, active in state["units"].items() if unit.startswith("vllm@") and active in RUNNING
    ]


def _enabled(state: InstalledState) -> list[str]:
    """Return the enabled deployments, by the links of `systemctl enable`. The edge has such a link too."""
    links = [path.rpartition("/")[2] for path in state["unit_files"] if ".wants/" in path]
    return [deployment_of(link) for link in links if link.startswith("vllm@")]


def _refusals(host: str, state: InstalledState, name: str, limit: str) -> Iterator[Refusal]:
    """Yield the reasons why this host cannot roll back. `limit` has every host of the rollback."""
    held = lease.parsed(state.get("lease") or {})
    if held and name in held.lent:
        yield lending.refusal(name, host, held.why)
    kept = state["deployments"][name]["launches"]
    launch = kept.get(SWAPPING) or kept.get(PREVIOUS)
    fits = sorted((launch or {}).get("record", {}).get("beside", ()))
    if others := sorted({*_running(state), *_enabled(state)} - {name, *fits}):
        yield ROLLBACK_ANOTHER_RUNS(
            what=f"{', '.join(others)} runs on {host}, or would with the next boot",
            expected=f"{name} beside {', '.join(fits)} at most"
            if fits
            else f"{name} alone, which its launch before needs",
            fix=Fix(f"ansible-playbook switch.yml -e to={name}", f"Then {name} runs, and the rollback is of it."),
        )
    if state["docker"]["error"]:
        yield ROLLBACK_NO_DOCKER(
            what=f"Docker does not answer on {host}: {state['docker']['error']}",
            expected="a running Docker, because a rollback needs its image",
            fix=Fix(f"ssh -t {host} sudo systemctl start docker"),
        )
        return
    if not launch or not launch["record"].get("launch") or not launch["runnable"]:
        yield ROLLBACK_NOTHING_BEFORE(
            what=f"{host} has no launch of {name} before this one",
            expected=f"{CONFIG_DIR}/{name}/previous, which deploy keeps when the launch changes",
            fix="deploy the inventory of that day: docs/operations/roll-back.md.",
        )
        return
    image = image_of(launch["record"])
    if find(state, image) is None:
        yield ROLLBACK_IMAGE_GONE(
            what=f"{image}, the image of the previous launch, is not on {host} any more",
            expected="the image on the Spark, because a rollback downloads nothing",
            fix="deploy the inventory of that day, which pulls or builds it: docs/operations/roll-back.md.",
        )
    # An interrupted rollback ends in its own direction.
    if SWAPPING not in kept and (why := _never_held(state["history"].get(name, ()), launch["record"]["launch"])):
        yield ROLLBACK_NEVER_HELD(
            what=f"the launch before of {name} on {host}, {launch_label(launch['record'])}, {why}",
            expected="a launch that once passed its gates",
            fix=f"correct the recipe or the inventory, then `ansible-playbook deploy.yml -l {limit}`.",
        )
    for why in launch["path_faults"]:
        yield ROLLBACK_FILES_GONE(
            what=f"the launch before cannot read its files on {host}: {why}",
            expected="everything that it mounts, because a rollback downloads nothing",
            fix="fetch the model at that commit again, as the runbook says.",
        )
    if not launch["gates"]:
        yield ROLLBACK_NO_GATES(
            what=f"the launch before on {host} was placed by a toolkit that left no gates.json",
            expected="gates.json, because nothing counts as serving until its gates hold",
            fix="deploy the inventory of that day: docs/operations/roll-back.md.",
        )


def _gone(state: InstalledState | None, name: str, secrets: Collection[str]) -> Iterator[Refusal]:
    """Yield a refusal per secret of a launch of the exchange that has no value today: a rollback restores none."""
    kept = state["deployments"][name]["launches"] if state else {}
    used = {secret for place in (CURRENT, PREVIOUS, SWAPPING) if place in kept for secret in kept[place]["secrets"]}
    for secret in sorted(used - set(secrets)):
        yield ROLLBACK_SECRET_GONE(
            what=f"a launch of {name} uses the secret {secret}, and vllm_secrets has no value for it today",
            expected="a value of today, because a rollback restores no secret",
            fix=f"set vllm_secrets.{secret}; if nothing asks for it any more, any value will do.",
        )


def _never_held(history: Sequence[Mapping[str, Any]], launch: str) -> str:
    """Return what the history of the host says of a launch that never passed its gates; empty for any other."""
    entries = [entry for entry in history if entry.get("launch") == launch]
    if any(entry.get("holds") for entry in entries):
        return ""
    if not entries:
        return "was never judged"
    missed = ", ".join((entries[-1].get("gates") or {}).get("missed", [])) or "a gate"
    return f"never passed its gates: ✗ {missed} at {entries[-1].get('time', 'an unknown time')}"


def _target_of(state: InstalledState, name: str, fingerprint: str) -> RollbackTarget:
    kept, folder = state["deployments"][name]["launches"], state["deployments"][name]["folder"]
    records = {place: kept[place]["record"] for place in (CURRENT, PREVIOUS, SWAPPING) if place in kept}
    to = fingerprint or records[PREVIOUS]["launch"]
    before: Mapping[str, Any] = next((record for record in records.values() if record.get("launch") == to), {})
    # After an interrupted rollback, the one of the two launches that the host does not return to.
    others = (record for record in records.values() if record.get("launch") not in (to, None))
    current: Mapping[str, Any] = next(others, {})
    return RollbackTarget(
        deployment=name,
        folder=folder,
        to=to,
        back=current.get("launch", ""),
        record=before,
        current=current,
        finishing=bool(fingerprint),
        edited=bool(_launch(kept, to)["edited"]),
        difference=launch_difference.summary(
            _launch(kept, str(current.get("launch", "")))["command"], _launch(kept, to)["command"]
        ),
    )


def _pair(hosts: Mapping[str, InstalledState], chosen: Mapping[str, RollbackTarget], name: str) -> Iterator[Refusal]:
    """Yield the reasons why the hosts of several ranks cannot roll back together, as they must."""
    launches = {host: _launch(state["deployments"][name]["launches"], chosen[host].to) for host, state in hosts.items()}
    ranks = {host: launch["needs"]["peers"] for host, launch in launches.items() if launch["needs"]["pair"]}
    if not ranks:
        return
    names = ", ".join(sorted(hosts))
    absent = sorted({peer for peers in ranks.values() for peer in peers} - set(hosts))
    if absent or len(ranks) != len(hosts) or len(hosts) == 1:
        kind, expected = "a pair's", "both Sparks, because a pair is one service"
        if max(map(len, ranks.values())) > 1:
            kind, expected = "one of several ranks", "all of its Sparks, because its ranks are one service"
        yield ROLLBACK_HALF_A_PAIR(
            what=f"the launch before of {name} is {kind}, and this run has {names} of it",
            expected=expected,
            fix=f"run the same command with {', '.join(absent) or 'its other half'} in -l, too.",
        )
        return
    if len({target.to for target in chosen.values()}) > 1 or any(not target.record for target in chosen.values()):
        observed = ", ".join(f"{host} has {target.to[:12]}" for host, target in chosen.items())
        yield ROLLBACK_TWO_LAUNCHES(
            what=f"the launches before of {name} are not those of one pair: {observed}",
            expected="one fingerprint on all of its Sparks",
            fix="deploy the inventory of that day: docs/operations/roll-back.md.",
        )
        return
    images = {host: find(hosts[host], image_of(target.record)) for host, target in chosen.items()}
    # An image that was pulled is found by its digest. A derived one has the same name everywhere.
    if len({image["identity"] for image in images.values() if image and image["identity"]}) > 1:
        yield ROLLBACK_TWO_IMAGES(
            what=f"{image_of(next(iter(chosen.values())).record)} is not the same image on {names}",
            expected="one image, because the ranks exchange pickled Python objects",
            fix="deploy the inventory of that day, which gives the worker the head's.",
        )


def _launch(kept: Mapping[str, Any], to: str) -> Mapping[str, Any]:
    """Return the launch with that fingerprint, or the previous launch if the host has none."""
    candidates = [kept[place] for place in (PREVIOUS, SWAPPING, CURRENT) if place in kept]
    return next((launch for launch in candidates if launch["record"].get("launch") == to), candidates[0])
