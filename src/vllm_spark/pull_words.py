"""What an operator reads while a box pulls, and when it could not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_spark import memory, progress
from vllm_spark.refusal import Refusal

GB = 1e9

# Reason of a program of src/vllm_spark/box -> (what was expected, fix, runbook).
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

VERBS = {
    "fetch": "fetching from the hub",
    "take": "copying over the fabric",
    "serve": "giving to the other Spark",
    "check": "checking the files",
    "image": "pulling the image",
    "shelf": "giving the image to the other Spark",
    "repair": "putting Docker's settings back",
}


def headline(progressed: Mapping[str, Any]) -> str:
    """E.g. `copying 12.1 of 16.9 GB (72 %), 3.10 GB/s  00:04`; its note behind it."""
    done, total = progressed.get("done", 0), progressed.get("total", 0)
    seconds = progressed.get("seconds", 0.0)
    amount = f" {done / GB:.1f} of {total / GB:.1f} GB ({100 * done // total} %)" if total else ""
    speed = f", {done / GB / seconds:.2f} GB/s" if seconds >= 1 and done else ""
    note = f" ({progressed['note']})" if progressed.get("note") else ""
    return f"{progressed.get('phase', 'starting')}{amount}{speed}{note}  {progress.clock(seconds)}"


def closing(job: str, result: Mapping[str, Any]) -> str:
    """What is said when a job has ended well; empty where it moved nothing."""
    if job == "take" and result.get("moved"):
        rate = result["moved"] / GB / max(result["seconds"], 0.01)
        cuts = f", {result['reconnects']} connections were cut" if result.get("reconnects") else ""
        took = f"{memory.gib(result['moved'])} in {result['seconds']:.0f} s, {rate:.2f} GB/s"
        return f"{_files(result['files'])}, {took}{cuts}"
    if job == "fetch":
        return "; ".join(
            f"{f['repository']}: {_files(f['files'])}, {memory.gib(f['bytes'])}" for f in result["fetched"]
        )
    if job == "image" and result.get("pulled"):
        return f"image {result['id'][:19]}: {memory.gib(result['sent'])} of layers"
    if job == "check" and result.get("bad"):
        return "; ".join(f"{folder}: bad and taken away: {', '.join(bad)}" for folder, bad in result["bad"].items())
    return ""


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def failure(job: str, host: str, result: Mapping[str, Any]) -> Refusal:
    """Why a job of a box did not end well."""
    expected, fix, runbook = REASONS.get(result.get("reason", ""), OTHER)
    said = " ".join(str(result.get("said") or "it ended without a word").split())
    return Refusal(
        id=f"pull-{result.get('reason', 'ended')}",
        what=f"{VERBS.get(job, job)} on {host} stopped: {said}",
        expected=expected,
        fix=fix,
        runbook=runbook,
    )


def moved(job: str, result: Mapping[str, Any]) -> bool:
    """Has the job changed the box?"""
    return bool(result.get({"take": "moved", "fetch": "fetched", "image": "pulled", "check": "bad"}.get(job, "")))
