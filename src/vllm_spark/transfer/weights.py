"""Which Spark fetches which weights, and who copies them from whom: once from outside, then over the fabric. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vllm_spark.core import units
from vllm_spark.core.host_layout import JOBS_DIR, PULL_PROGRAM_DIR
from vllm_spark.core.ports import BUNDLE_WEIGHTS_PORT, LOOPBACK, WEIGHTS_PORT
from vllm_spark.core.refusal import Refusal, register
from vllm_spark.transfer.site import PulledModel, PullSite, PullSteps, is_whole, models

PULL_DISK = register("pull-disk", runbook="disk-full")
PULL_INCOMPLETE = register("pull-incomplete", runbook="pull-weights")

FETCH_CONTAINER = "vllm-spark-fetch"

# What a disk keeps free beside what comes: logs, a compile cache, the next release of DGX OS.
SPARE_BYTES = 2 << 30

# In the engine's container; what the image's own PYTHONPATH says stays.
RUN_FETCH = (
    "import runpy, sys; sys.path.insert(0, '/programs'); "
    "runpy.run_module('vllm_spark.node.pull.hub_fetch', run_name='__main__')"
)


def plan(site: PullSite, found: Mapping[str, PullSteps]) -> None:
    """Complete every Spark's steps with its weights."""
    for model in models([spec for specs in site.wanted.values() for spec in specs]):
        hosts = [host for host, specs in site.wanted.items() if model in models(specs)]
        havers = [host for host in hosts if is_whole(site.look(host, model))]
        for host in hosts:
            if host in havers:
                continue
            giver = next((other for other in havers if _can_give(site, found, other, host)), "")
            if giver:
                _copy(site, found, model, (giver, host))
            else:
                havers.append(host)
                _from_outside(site, found[host], model, host)
    for host, mine in found.items():
        if mine.fetch:
            mine.fetch_words = fetch_words(site.wanted[host][0].image, site.hub(host))


def fetch_words(image: str, hub_dir: str) -> list[str]:
    """The engine's own image fetches: it has huggingface_hub, and a Spark needs nothing installed."""
    return [
        *("docker", "run", "--rm", "--name", FETCH_CONTAINER, "--network", "host", "--pull", "never"),
        *("--entrypoint", "python3", "--env-file", f"{JOBS_DIR}/fetch.env", "--env", "HF_HUB_OFFLINE=0"),
        *("--env", "VLLM_SPARK_JOBS=/jobs", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *("--mount", f"type=bind,source={hub_dir},target=/hub"),
        *("--mount", f"type=bind,source={JOBS_DIR},target=/jobs"),
        *("--mount", f"type=bind,source={PULL_PROGRAM_DIR},target=/programs,readonly"),
        *(image, "-c", RUN_FETCH),
    ]


def _can_give(site: PullSite, found: Mapping[str, PullSteps], giver: str, taker: str) -> bool:
    """A giver listens on one address, so of a Spark with two fabrics those on the first get it."""
    address = site.address(giver, taker)
    return bool(address) and found[giver].give.get("address", address) == address


def _copy(site: PullSite, found: Mapping[str, PullSteps], model: PulledModel, ends: tuple[str, str]) -> None:
    giver, taker = ends
    end = {"address": site.address(giver, taker), "port": WEIGHTS_PORT}
    give = found[giver].give
    give.update({**end, "hub": site.hub(giver)})
    if model.request() not in give.setdefault("sources", []):
        give["sources"].append(model.request())
    taken = next((entry for entry in found[taker].take if entry["from"] == giver), None)
    if taken is None:
        taken = {**end, "from": giver, "hub": site.hub(taker), "sources": []}
        found[taker].take.append(taken)
    taken["sources"].append(model.request())
    found[taker].lines.append(f"{model} comes from {giver}, over the fabric")


def _from_outside(site: PullSite, mine: PullSteps, model: PulledModel, host: str) -> None:
    size = units.gib(to_come(site, host, model))
    if site.bundled:
        end = {"address": LOOPBACK, "port": BUNDLE_WEIGHTS_PORT, "hub": site.hub(host), "from": "the bundle"}
        mine.load.update(end)
        mine.load.setdefault("sources", []).append(model.request())
        mine.lines.append(f"{model} comes from the bundle, {size}")
    else:
        # In the container it is /hub.
        mine.fetch.update({"hub": "/hub", "hub_here": site.hub(host)})
        mine.fetch.setdefault("sources", []).append(model.request())
        mine.lines.append(f"{model} comes from the hub, {size}")


def to_come(site: PullSite, host: str, model: PulledModel) -> int:
    """Bytes that a Spark lacks of a model, as far as anybody knows."""
    look = site.look(host, model)
    return int(look["missing"]) if look.get("manifest") else model.size


def disk_refusals(site: PullSite, host: str) -> Iterator[Refusal]:
    """A Spark whose disk will not hold what comes."""
    lacking = [model for model in models(site.wanted[host]) if not is_whole(site.look(host, model))]
    needed = sum(to_come(site, host, model) - int(site.look(host, model).get("partial", 0)) for model in lacking)
    free = site.facts[host]["disks"][site.hub(host)]["free"]
    if needed > 0 and needed + SPARE_BYTES > free:
        yield PULL_DISK(
            what=f"{site.hub(host)} of {host} has {units.gib(free)} free, and {', '.join(map(str, lacking))} "
            f"{'takes' if len(lacking) == 1 else 'take'} {units.gib(needed)}",
            expected=f"that and {units.gib(SPARE_BYTES)} more",
            fix="remove models that no recipe names any more (prune.yml), or set vllm_hub_dir to a larger disk.",
        )


def incomplete(site: PullSite, host: str) -> Iterator[Refusal]:
    """Models that are not whole, or not proven, when everything has been done."""
    for model in models(site.wanted[host]):
        look = site.look(host, model)
        if not is_whole(look) or look["unread"]:
            wrong = ", ".join(look.get("wrong", [])[:5]) or look.get("error") or "nobody has read all of its files"
            yield PULL_INCOMPLETE(
                what=f"{model} on {host} is not proven: {wrong}",
                expected="every file of its manifest, with its sha256",
                fix="ansible-playbook pull.yml again: it fetches what is missing.",
            )
