"""What `pull` does on every Spark, or why it cannot. Pure: specs, looks and facts in, requests out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_spark import image_pull, images, paths, plan, weights_pull
from vllm_spark.pull_site import Site, Steps, models
from vllm_spark.refusal import Refusal, RefusedError
from vllm_spark.spec import Spec

PROGRAMS = ("weights", "jobs", "transfer", "hub_fetch", "shelf", "image")


def questions(specs: Sequence[Spec]) -> dict[str, Any]:
    """What spark_facts is asked."""
    named = [image for spec in specs for image in images.questions(spec)]
    hubs = [spec.site.hub_dir for spec in specs]
    return {"images": list(dict.fromkeys(named)), "fabric": True, "disks": list(dict.fromkeys(hubs))}


def look_at(specs: Sequence[Spec]) -> dict[str, Any]:
    """What vllm_weights is asked to look at, in the form of a request."""
    return {"hub": specs[0].site.hub_dir, "sources": [model.request() for model in models(specs)]}


def programs() -> dict[str, str]:
    """The programs of the box, by their path below pull_site.PROGRAM_DIR."""
    # A package of its own: on a machine that has the toolkit installed, its programs would be taken instead.
    return {"vllm_spark/__init__.py": "", "vllm_spark/box/__init__.py": ""} | {
        f"vllm_spark/box/{name}.py": (paths.BOX / f"{name}.py").read_text(encoding="utf-8") for name in PROGRAMS
    }


def steps(site: Site, host: str) -> Steps:
    """What one Spark does, which the others have to know of. Raises RefusedError with every reason of its own."""
    found = {name: Steps() for name in site.wanted}
    weights_pull.plan(site, found)
    refused: list[Refusal] = [
        *plan.docker_refusals(site.facts[host]),
        *weights_pull.disk_refusals(site, host),
        *image_pull.steps(site, found)[host],
    ]
    if refused:
        raise RefusedError(refused)
    return found[host]


def proven(site: Site, host: str) -> None:
    """When everything has been done: raises RefusedError with everything that is still not right on this Spark; what
    is wrong between two is said at the head."""
    refused = [*weights_pull.incomplete(site, host), *image_pull.differing(site, host)]
    if refused:
        raise RefusedError(refused)
