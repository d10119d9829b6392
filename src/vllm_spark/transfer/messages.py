"""What an operator reads while a box pulls, and when it could not. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.core.units import GB
from vllm_spark.verify import startup_phases
from vllm_spark.verify.startup_phases import Phase, StartupProgress

IMAGE_OVERLAY = register("image-overlay", runbook="image-overlay")
IMAGE_TRANSFER = register("image-transfer", runbook="image-transfer")
PATCH_DOES_NOT_APPLY = register("patch-does-not-apply", runbook="patch-does-not-apply")
IMAGE_BUILD = register("image-build", runbook="image-build")
IMAGE_PULL = register("image-pull", runbook="image-pull")


# Reason of a program of src/vllm_spark/node -> (what was expected, fix, runbook).
REASONS: Mapping[str, tuple[str, str, str]] = {
    "hub-login": (
        "a repository that the token may read",
        "accept the model's terms, and set vllm_secrets.HF_TOKEN; correct model.repository of the recipe.",
        "lock-model",
    ),
    "hub-down": (
        "the hub to answer this Spark",
        "ansible-playbook pull.yml again when it answers: what has arrived is kept. Without internet: docs/operations/"
        "air-gapped.md.",
        "pull-weights",
    ),
    "corrupt": (
        "files with the sha256 of the manifest",
        "ansible-playbook pull.yml -e pull_verify=true, which reads every file on every Spark and fetches what is bad.",
        "pull-weights",
    ),
    "disk-full": (
        "room for it on the disk of vllm_hub_dir",
        "remove models that no recipe names any more (prune.yml), or name a larger disk; then pull.yml again.",
        "disk-full",
    ),
    "link": (
        "the fabric to carry the copy",
        "see to the cable and the link, then pull.yml again: it goes on from what has arrived.",
        "pull-fabric",
    ),
    "giver": (
        "the other Spark to give what it has",
        "ansible-playbook pull.yml again.",
        "pull-fabric",
    ),
    "no-manifest": (
        "a manifest that says what the model is",
        "ansible-playbook pull.yml where the hub can be asked.",
        "pull-weights",
    ),
    "image": (
        "the image by its digest",
        "ansible-playbook pull.yml again; layers that arrived are kept.",
        "image-transfer",
    ),
    "image-port": (
        "this port of the loopback device to be free while an image is pulled",
        "stop what listens there (ss -ltnp), then pull.yml again.",
        "image-transfer",
    ),
    "docker-mirror": (
        "Docker to take a mirror by a reload",
        "correct /etc/docker/daemon.json, and move a --registry-mirror of Docker's own command line into it.",
        "image-transfer",
    ),
}
OTHER = ("it to end well", "ansible-playbook pull.yml again: what has arrived is kept.", "pull-weights")

for _reason, (_, _, _runbook) in REASONS.items():
    register(f"pull-{_reason}", runbook=_runbook)

VERBS = {
    "fetch": "fetching from the hub",
    "take": "copying over the fabric",
    "serve": "giving to the other Spark",
    "check": "checking the files",
    "image": "pulling the image",
    "shelf": "giving the image to the other Spark",
    "repair": "putting Docker's settings back",
}


def job_headline(progressed: Mapping[str, Any]) -> str:
    """E.g. `copying 12.1 of 16.9 GB (72 %), 3.10 GB/s  00:04`; its note behind it."""
    done, total = progressed.get("done", 0), progressed.get("total", 0)
    seconds = progressed.get("seconds", 0.0)
    amount = f" {done / GB:.1f} of {total / GB:.1f} GB ({100 * done // total} %)" if total else ""
    speed = f", {done / GB / seconds:.2f} GB/s" if seconds >= 1 and done else ""
    note = f" ({progressed['note']})" if progressed.get("note") else ""
    return f"{progressed.get('phase', 'starting')}{amount}{speed}{note}  {units.clock(seconds)}"


def job_summary(job: str, result: Mapping[str, Any]) -> str:
    """What is said when a job has ended well; empty where it moved nothing."""
    if job == "take" and result.get("moved"):
        rate = result["moved"] / GB / max(result["seconds"], 0.01)
        cuts = f", {result['reconnects']} connections were cut" if result.get("reconnects") else ""
        took = f"{units.gib(result['moved'])} in {result['seconds']:.0f} s, {rate:.2f} GB/s"
        return f"{_files(result['files'])}, {took}{cuts}"
    if job == "fetch":
        return "; ".join(f"{f['repository']}: {_files(f['files'])}, {units.gib(f['bytes'])}" for f in result["fetched"])
    if job == "image" and result.get("pulled"):
        return f"image {result['id'][:19]}: {units.gib(result['sent'])} of layers"
    if job == "check" and result.get("bad"):
        return "; ".join(f"{folder}: bad and taken away: {', '.join(bad)}" for folder, bad in result["bad"].items())
    return ""


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def job_failure(job: str, host: str, result: Mapping[str, Any]) -> Refusal:
    """Why a job of a box did not end well."""
    said = " ".join(str(result.get("said") or "it ended without a word").split())
    return job_refusal(str(result.get("reason", "ended")), f"{VERBS.get(job, job)} on {host} stopped: {said}")


def job_refusal(reason: str, what: str) -> Refusal:
    """Return the refusal for the reason of a program of src/vllm_spark/node/pull."""
    expected, fix, runbook = REASONS.get(reason, OTHER)
    return register(f"pull-{reason}", runbook=runbook)(what=what, expected=expected, fix=fix)


def changed_host(job: str, result: Mapping[str, Any]) -> bool:
    """Has the job changed the box?"""
    return bool(result.get({"take": "moved", "fetch": "fetched", "image": "pulled", "check": "bad"}.get(job, "")))


LINE_WIDTH = 80
# A step's own last words, between what the builder puts before a line and the colour it ends one with.
STEP_REFUSAL = re.compile(r"vllm-spark refuses: ([^\x1b\n]*)")
TERMINAL_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def build_headline(line: str, elapsed_s: float, deadline_s: float) -> str:
    """What an operator reads while an image is built; `line` is the last of the log."""
    shown = " ".join(TERMINAL_COLOUR.sub("", line).split())[:LINE_WIDTH]
    return f"building ({shown or 'starting'})  {units.clock(elapsed_s)} of {units.clock(deadline_s)}"


def overlay_failure(overlay: Mapping[str, str], said: str) -> str:
    """Why an overlay could not be fetched; `said` is get_url's own message, which has the checksum seen."""
    return str(
        IMAGE_OVERLAY(
            what=f"the overlay {overlay['url']} was not taken: {' '.join(said.split())}",
            expected=f"an archive with sha256 {overlay['sha256']}",
            fix="correct image.derive.overlay of the recipe, if its archive changed on purpose; nothing was built.",
        )
    )


def transfer_failure(transfer: Mapping[str, Any], said: str) -> str:
    """Why the worker did not get the head's image; `said` is what the step that failed said."""
    return str(
        IMAGE_TRANSFER(
            what=f"{transfer['image']} did not go from {transfer['head_host']} to its worker: {' '.join(said.split())}",
            expected=f"a registry on {transfer['head']} port {transfer['port']}, reached over the fabric",
            fix="see what the runbook checks, then deploy again: layers that arrived are kept.",
        )
    )


def build_failure(image: str, lines: Sequence[str], log: str) -> str:
    """Why a build failed, from the end of its log: a step's own reason, else the builder's last words."""
    text = TERMINAL_COLOUR.sub("", "\n".join(lines))
    refused = STEP_REFUSAL.findall(text)
    said = refused[-1].strip() if refused else " ".join(text.split())[-300:] or "the builder ended without a word"
    if refused and said.startswith("patch "):
        return str(
            PATCH_DOES_NOT_APPLY(
                what=f"building {image} stopped: {said}",
                expected="a patch that applies to the base image without changes, or is there already",
                fix=f"make the patch anew for this base, or leave it out of the recipe; the whole log is {log}.",
            )
        )
    return str(
        IMAGE_BUILD(
            what=f"building {image} stopped: {said}",
            expected="every step of the recipe's image.derive to be possible on this base",
            fix=f"correct image.derive of the recipe; the whole log is {log}.",
        )
    )


def image_headline(arrived_bytes: int, elapsed_s: float, deadline_s: float) -> str:
    """E.g. `pulling (3.1 GiB on disk)  00:41 of 1:00:00`. Layers count once unpacked, so it moves in steps."""
    return startup_phases.headline(
        StartupProgress(Phase.PULLING, detail=f"{units.gib(max(arrived_bytes, 0))} on disk"), elapsed_s, deadline_s
    )


def image_failure(image: str, said: str) -> str:
    """Why a pull failed."""
    return str(
        IMAGE_PULL(
            what=f"pulling {image} failed: {said or 'the job ended without a word'}",
            expected="the registry to serve this digest",
            fix="run `docker pull` of it on the Spark; if the digest is gone, correct the recipe or the lock file.",
        )
    )
