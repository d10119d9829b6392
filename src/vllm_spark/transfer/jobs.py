"""The jobs of a pull, one row each, and the reasons for which they fail. A new job is a row here and its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.refusal import Fix, Refusal, RefusalKind, register
from vllm_spark.core.units import GB
from vllm_spark.node.pull.job import ProgressJson

# A result as the function of the job returns it, read back from JSON; each job has its own keys.
Result = Mapping[str, Any]


# A NIC in its power limit carries 13 Gb/s, which is 1.6 GB/s (NVIDIA/dgx-spark-playbooks#108). A short copy does not
# show it.
LEAST_GB_S = 1.8
LARGE_BYTES = 4 * GB
SLOW_LINK = (
    f"warning fabric-slow: this is below {LEAST_GB_S} GB/s over a link of 200 Gb/s — expected: 3 GB/s and more. Fix: "
    "ansible-playbook precheck.yml -e measure_fabric=true. It shows whether the link is slow; if it is, reboot both "
    "Sparks with the cable in. See docs/runbooks/fabric-slow.md"
)


@dataclass(frozen=True, slots=True)
class Job:
    """A job: a function of a module of src/vllm_spark/node/pull, which runs as the unit vllm-spark-pull-ID.

    `verb` is the job for an operator. The host has changed if `result_key` of the result is not empty or 0. `joins`:
    after Ctrl-C the same command watches the job that goes on, because a stopped one would begin again.
    """

    id: str
    module: str
    function: str
    verb: str
    result_key: str = ""
    summary: Callable[[Result], str] = lambda _: ""
    joins: bool = False

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of vllm_spark.node.pull.run."""
        return [self.id, self.module, self.function]

    @property
    def argv(self) -> list[str]:
        """The command on a host."""
        return ["/usr/bin/python3", "-m", "vllm_spark.node.pull.run", *self.arguments]


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _copied(result: Result) -> str:
    if not result.get("moved"):
        return ""
    rate = result["moved"] / GB / max(result["seconds"], 0.01)
    lost = f", {result['reconnects']} connections were lost" if result.get("reconnects") else ""
    amount = f"{units.gib(result['moved'])} in {result['seconds']:.0f} s, {rate:.2f} GB/s"
    slow = f". {SLOW_LINK}" if result["moved"] >= LARGE_BYTES and rate < LEAST_GB_S else ""
    return f"{_files(result['files'])}, {amount}{lost}{slow}"


def _fetched(result: Result) -> str:
    models = result["fetched"]
    return "; ".join(f"{m['repository']}: {_files(m['files'])}, {units.gib(m['bytes'])}" for m in models)


def _pulled(result: Result) -> str:
    note = f". {result['note']}" if result.get("note") else ""
    return f"image {result['digest'][:19]}: {units.gib(result['sent'])} of layers{note}" if result.get("pulled") else ""


def _deleted(result: Result) -> str:
    return "; ".join(f"{folder}: damaged and deleted: {', '.join(bad)}" for folder, bad in result["bad"].items())


JOBS = {
    job.id: job
    for job in (
        Job("check", "hub_cache", "check_models", "checking the files", "bad", _deleted),
        Job("fetch-hub", "hub_fetch", "fetch_from_hub", "fetching from the hub", "fetched", _fetched),
        Job("fetch-peer", "range_client", "fetch_from_peer", "copying over the fabric", "moved", _copied),
        Job("serve-files", "range_server", "serve_files", "serving files to the other Spark"),
        Job("image", "image_pull", "pull_image", "pulling the image", "pulled", _pulled, joins=True),
        Job("serve-images", "image_pull", "serve_images", "serving images to the other Spark"),
        Job("push-image", "image_pull", "push_image", "taking the built image out of Docker"),
    )
}

# The refusal of each reason of a JobError, without `what`.
REASONS = {
    "hub-login": partial(
        register("pull-hub-login", runbook="lock-model"),
        expected="a repository that the token may read",
        fix="accept the model's terms, and set vllm_secrets.HF_TOKEN; correct model.repository of the recipe.",
    ),
    "hub-down": partial(
        register("pull-hub-down", runbook="pull-weights"),
        expected="a hub that answers this Spark",
        fix=Fix(
            "ansible-playbook pull.yml",
            "It needs a hub that answers; what has arrived is kept. Without internet: docs/operations/air-gapped.md.",
        ),
    ),
    "corrupt": partial(
        register("pull-corrupt", runbook="pull-weights"),
        expected="files with the sha256 of the manifest",
        fix=Fix(
            "ansible-playbook pull.yml -e pull_verify=true",
            "It reads every file on every Spark and fetches the damaged ones.",
        ),
    ),
    "disk-full": partial(
        register("pull-disk-full", runbook="disk-full"),
        expected="enough free space on the disk of vllm_hub_dir",
        fix="remove models that no recipe names any more (`ansible-playbook prune.yml`), or name a larger "
        "disk; then `ansible-playbook pull.yml`.",
    ),
    "link": partial(
        register("pull-link", runbook="pull-fabric"),
        expected="a fabric that carries the copy",
        fix="check the cable and the link, then `ansible-playbook pull.yml`: it continues from what has arrived.",
    ),
    # The sender of a copy. The refusal id pull-giver is older than this name.
    "giver": partial(
        register("pull-giver", runbook="pull-fabric"),
        expected="the server of this run, which proves its secret and serves this model",
        fix="see which process listens on the sender (`sudo ss -ltnp 'sport = :25091'`), stop it, then "
        "`ansible-playbook pull.yml`.",
    ),
    "port-taken": partial(
        register("pull-port-taken", runbook="pull-fabric"),
        expected="a free port on the sender's fabric address",
        fix="stop the process that listens there (`sudo ss -ltnp 'sport >= :25091 and sport <= :25092'`), "
        "then `ansible-playbook pull.yml`.",
    ),
    "other-manifest": partial(
        register("pull-other-manifest", runbook="pull-manifest"),
        expected="the list of files that the lock file, or the sender through Ansible, names",
        fix="remove `manifest` of this model from the lock file, then `ansible-playbook lock.yml`. The same value "
        "again means that the copy is not the hub's: remove the copy.",
    ),
    "link-in-hub": partial(
        register("pull-link-in-hub", runbook="pull-manifest"),
        expected="folders and files below vllm_hub_dir, because root follows no link there",
        fix="replace the link by what it leads to, or set vllm_hub_dir to the folder that it leads to; then "
        "`ansible-playbook pull.yml`.",
    ),
    "no-manifest": partial(
        register("pull-no-manifest", runbook="pull-weights"),
        expected="a valid manifest of the model",
        fix=Fix("ansible-playbook pull.yml", "It needs a hub that is reachable."),
    ),
    "image": partial(
        register("pull-image", runbook="image-pull"),
        expected="a registry, a bundle or a Spark that serves this digest, and a Docker that takes it",
        fix="correct the cause, or the digest in the recipe or the lock file; then run the same command again.",
    ),
    "image-port": partial(
        register("pull-image-port", runbook="image-pull"),
        expected="a free port on the loopback device while an image is pulled",
        fix="stop the process that listens there (`sudo ss -ltnp 'sport = :25093'`), then run the same command again.",
    ),
}


def headline(progress: ProgressJson) -> str:
    """Return e.g. `copying 12.1 of 16.9 GB (72 %), 3.10 GB/s  00:04`, with the note of the job behind the speed."""
    done, total = progress.get("done", 0), progress.get("total", 0)
    seconds = progress.get("seconds", 0.0)
    amount = f" {done / GB:.1f} of {total / GB:.1f} GB ({100 * done // total} %)" if total else ""
    speed = f", {done / GB / seconds:.2f} GB/s" if seconds >= 1 and done else ""
    note = f" ({progress['note']})" if progress.get("note") else ""
    return f"{progress.get('phase', 'starting')}{amount}{speed}{note}  {units.clock(seconds)}"


def with_manifests(request: Mapping[str, Any], manifests: Mapping[str, str]) -> dict[str, Any]:
    """Return the request of a receiver with the sha256 of each manifest as its sender reported it to Ansible.

    One of the lock file stays.
    """
    sources = [{"manifest": manifests.get(f"{ref['folder']}/{ref['commit']}", ""), **ref} for ref in request["sources"]]
    return {**request, "sources": sources}


def with_digest(request: Mapping[str, Any], pushed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the request to pull an image that another Spark has built, with the digest of its push.

    `pushed` are the results of that Spark's tasks. A digest of the recipe stays.
    """
    results = (entry.get("result") or {} for entry in pushed)
    digests = {result["image"]: result["digest"] for result in results if "image" in result}
    return {**request, "digest": request["digest"] or digests.get(request["image"], "")}


def has_changed_host(job: str, result: Result) -> bool:
    """Return True if the job has changed its host."""
    return bool(result.get(JOBS[job].result_key))


def failure(job: str, host: str, result: Result) -> Refusal:
    """Return the refusal for the failed result of a job on a host."""
    detail = " ".join(str(result.get("detail") or "it ended without a message").split())
    return refusal(str(result.get("reason", "ended")), f"{JOBS[job].verb} on {host} stopped: {detail}")


def refusal(reason: str, what: str) -> Refusal:
    """Return the refusal for the reason of a JobError. Other reasons are stopped, os and ended."""
    known = REASONS.get(reason) or partial(
        RefusalKind(f"pull-{reason}", "pull-weights"),
        expected="exit status 0",
        fix=Fix("ansible-playbook pull.yml", "What has arrived is kept."),
    )
    return known(what=what)
