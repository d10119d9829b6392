"""The source of the weights on each Spark: outside once, then other Sparks over the fabric. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from vllm_spark.core import units
from vllm_spark.core.ports import BUNDLE_PORT, LOOPBACK, WEIGHTS_PORT
from vllm_spark.core.refusal import Fix, Refusal, register
from vllm_spark.node.host_layout import JOBS_DIR, PULL_PROGRAM_DIR
from vllm_spark.node.pull import hub_fetch
from vllm_spark.node.pull.range_client import PeerRequest
from vllm_spark.transfer.jobs import JOBS
from vllm_spark.transfer.site import PulledModel, PullSite, PullSteps, models

PULL_DISK = register("pull-disk", runbook="disk-full")
PULL_INCOMPLETE = register("pull-incomplete", runbook="pull-weights")
MANIFESTS_DIFFER = register("pull-manifests-differ", runbook="pull-manifest")

FETCH_CONTAINER = "vllm-spark-fetch"

# Reserve on the disk for logs, a compile cache and the next release of DGX OS.
SPARE_BYTES = 2 << 30

# Runs in the engine's container and keeps the image's own PYTHONPATH. sys.argv has the arguments of the job.
RUN_JOB = (
    "import runpy, sys; sys.path.insert(0, '/programs'); "
    "runpy.run_module('vllm_spark.node.pull.run', run_name='__main__')"
)


def needs_check(states: Collection[Mapping[str, Any]], verify: bool) -> bool:
    """Return True if a file must be hashed. `states` are those of vllm_model_state, one per model: without `verify`
    only bytes that changed since they were last hashed count (`unread`). A model without a manifest has nothing to
    compare with."""
    known = [state for state in states if state["manifest"]]
    return any(state["unread"] > 0 for state in known) or (verify and bool(known))


def plan(site: PullSite, steps: Mapping[str, PullSteps]) -> None:
    """Add the weights to the steps of every host."""
    for model in models([spec for specs in site.specs.values() for spec in specs]):
        _plan_model(site, steps, model)
    rounds = max((len(own.copy_rounds) for own in steps.values()), default=0)
    for host, own in steps.items():
        if rounds:
            own.copy_round(rounds - 1)
        if own.hub_fetch:
            own.hub_fetch_argv = hub_fetch_argv(site.specs[host][0].image, site.hub(host))


def _plan_model(site: PullSite, steps: Mapping[str, PullSteps], model: PulledModel) -> None:
    """Copy a model as a tree: a Spark serves one other in a round, and each that has it serves in the next round."""
    hosts = [host for host, specs in site.specs.items() if model in models(specs)]
    # The next round in which a Spark can serve the model.
    ready = {host: 0 for host in hosts if site.is_complete(host, model)}
    for host in hosts:
        if host in ready:
            continue
        senders = [other for other, number in ready.items() if _can_send(site, steps, (other, host), number)]
        if senders:
            sender = min(senders, key=ready.__getitem__)
            _fetch_from_peer(site, steps, model, (sender, host), ready[sender])
            ready[sender] = ready[host] = ready[sender] + 1
        else:
            _fetch_from_outside(site, steps[host], model, host)
            ready[host] = 0


def hub_fetch_argv(image: str, hub_dir: str) -> list[str]:
    """Return the command that fetches in the engine's own image, which has huggingface_hub."""
    job = JOBS["fetch-hub"]
    return [
        *("docker", "run", "--rm", "--name", FETCH_CONTAINER, "--network", "host", "--pull", "never"),
        *("--entrypoint", "python3", "--env-file", f"{JOBS_DIR}/{job.id}.env"),
        *(word for name, value in hub_fetch.ENVIRONMENT.items() for word in ("--env", f"{name}={value}")),
        *("--env", "VLLM_SPARK_JOBS=/jobs", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *("--mount", f"type=bind,source={hub_dir},target=/hub"),
        *("--mount", f"type=bind,source={JOBS_DIR},target=/jobs"),
        *("--mount", f"type=bind,source={PULL_PROGRAM_DIR},target=/programs,readonly"),
        *(image, "-c", RUN_JOB, *job.arguments),
    ]


def _can_send(site: PullSite, steps: Mapping[str, PullSteps], route: tuple[str, str], number: int) -> bool:
    """Return True if a fabric joins sender and receiver. A server has one address, so it serves only one of two
    fabrics in a round."""
    address = site.address(*route)
    return bool(address) and steps[route[0]].copy_round(number)["server"].get("address", address) == address


def _fetch_from_peer(
    site: PullSite, steps: Mapping[str, PullSteps], model: PulledModel, route: tuple[str, str], number: int
) -> None:
    sender, receiver = route
    address = site.address(sender, receiver)
    server, fetches = steps[sender].copy_round(number)["server"], steps[receiver].copy_round(number)["fetches"]
    server.update({"address": address, "port": WEIGHTS_PORT, "hub": site.hub(sender)})
    if model.ref() not in server.setdefault("sources", []):
        server["sources"].append(model.ref())
    request = next((entry for entry in fetches if entry["sender"] == sender), None)
    if request is None:
        request = PeerRequest(address=address, port=WEIGHTS_PORT, sender=sender, hub=site.hub(receiver), sources=[])
        fetches.append(request)
    request["sources"].append(model.ref())
    steps[receiver].lines.append(f"{model} comes from {sender}, over the fabric{_unproven(model)}")


def _fetch_from_outside(site: PullSite, own: PullSteps, model: PulledModel, host: str) -> None:
    if site.bundled:
        request = own.bundle_fetch
        request.update({"address": LOOPBACK, "port": BUNDLE_PORT, "hub": site.hub(host)})
        request["sender"] = "the bundle"
        request.setdefault("sources", []).append(model.ref())
        own.lines.append(f"{model} comes from the bundle, {site.missing_words(host, model)}{_unproven(model)}")
    else:
        # /hub is the path in the container.
        own.hub_fetch.update({"hub": "/hub", "hub_here": site.hub(host)})
        own.hub_fetch.setdefault("sources", []).append(model.ref())
        own.lines.append(f"{model} {_from_hub(site, model, host)}{_unproven(model)}")


def _unproven(model: PulledModel) -> str:
    """Return what an operator must know of a model whose list of files the lock file does not have."""
    if model.manifest:
        return ""
    return (
        "; the lock file has no manifest of it, so only its sender vouches for it (ansible-playbook lock.yml adds it)"
    )


def _from_hub(site: PullSite, model: PulledModel, host: str) -> str:
    """Return what the hub is needed for. Files without a manifest were copied by hand: nobody has verified them."""
    state = site.state(host, model)
    if state and state["error"]:
        return f"is here, but {state['error']}: its files are compared with the hub's list, and what differs is fetched"
    if state and state["present"] and not state["manifest"]:
        return "is here without a manifest: its files are compared with the hub's list, and what differs is fetched"
    return f"comes from the hub, {site.missing_words(host, model)}"


def disk_refusals(site: PullSite, host: str) -> Iterator[Refusal]:
    """Yield a refusal if the disk of a host is too small for the missing files of known size."""
    incomplete_models = [model for model in models(site.specs[host]) if not site.is_complete(host, model)]
    needed = 0
    for model in incomplete_models:
        state = site.state(host, model)
        needed += max(site.missing_bytes(host, model) - (state["partial"] if state else 0), 0)
    free = site.free_bytes(host)
    least = "" if all(site.knows_size(host, model) for model in incomplete_models) else "at least "
    if needed > 0 and needed + SPARE_BYTES > free:
        yield PULL_DISK(
            what=f"{site.hub(host)} of {host} has {units.gib(free)} free, and "
            f"{', '.join(map(str, incomplete_models))} {'takes' if len(incomplete_models) == 1 else 'take'} "
            f"{least}{units.gib(needed)}",
            expected=f"that and {units.gib(SPARE_BYTES)} more",
            fix="remove models that no recipe names any more (`ansible-playbook prune.yml`), or set vllm_hub_dir to a "
            "larger disk.",
        )


def incomplete(site: PullSite, host: str) -> Iterator[Refusal]:
    """Yield a refusal for each model that is not complete and verified at the end of a pull, or has another list of
    files than on the first Spark of the site."""
    for model in models(site.specs[host]):
        state = site.state(host, model)
        yield from _other_manifest(site, model, host)
        if state is None or not site.is_complete(host, model) or state["unread"]:
            cause = (", ".join(state["wrong"][:5]) or state["error"]) if state else ""
            yield PULL_INCOMPLETE(
                what=f"{model} on {host} is not proven: {cause or 'not all of its files were verified'}",
                expected="every file of its manifest, with its sha256",
                fix=Fix("ansible-playbook pull.yml", "It fetches what is missing."),
            )


def _other_manifest(site: PullSite, model: PulledModel, host: str) -> Iterator[Refusal]:
    hosts = [other for other, specs in site.specs.items() if model in models(specs)]
    sums = {other: state["sha256"] for other in hosts if (state := site.state(other, model)) and state["manifest"]}
    first = next(iter(sums), host)
    if host in sums and sums[host] != sums[first]:
        yield MANIFESTS_DIFFER(
            what=f"the list of the files of {model} on {host} has sha256 {sums[host]}",
            expected=f"{sums[first]} as on {first}",
            fix=Fix("ansible-playbook lock.yml", "It records the hub's list. Then `ansible-playbook pull.yml`."),
        )
