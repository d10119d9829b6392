"""What `pull` does on every Spark, or why it cannot. Pure: specs, looks and facts in, requests out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.deploy import images
from vllm_spark.inventory.spec import Spec
from vllm_spark.preflight import checks
from vllm_spark.transfer import images as transfer_images
from vllm_spark.transfer import weights
from vllm_spark.transfer.site import PullSite, PullSteps, models

PROGRAMS = ("hub_cache", "job", "range_copy", "hub_fetch", "blob_registry", "image_pull")


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
    return {
        **dict.fromkeys(
            ("vllm_spark/__init__.py", "vllm_spark/node/__init__.py", "vllm_spark/node/pull/__init__.py"), ""
        ),
        **{
            f"vllm_spark/node/pull/{name}.py": (paths.NODE / "pull" / f"{name}.py").read_text(encoding="utf-8")
            for name in PROGRAMS
        },
    }


def steps(site: PullSite, host: str) -> PullSteps:
    """What one Spark does, which the others have to know of. Raises RefusedError with every reason of its own."""
    found = {name: PullSteps() for name in site.wanted}
    weights.plan(site, found)
    refused: list[Refusal] = [
        *checks.docker_refusals(site.facts[host]),
        *weights.disk_refusals(site, host),
        *transfer_images.steps(site, found)[host],
    ]
    if refused:
        raise RefusedError(refused)
    return found[host]


def proven(site: PullSite, host: str) -> None:
    """When everything has been done: raises RefusedError with everything that is still not right on this Spark; what
    is wrong between two is said at the head."""
    refused = [*weights.incomplete(site, host), *transfer_images.differing(site, host)]
    if refused:
        raise RefusedError(refused)
