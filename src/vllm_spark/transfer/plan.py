"""Steps of `pull` on every Spark, or the refusals. Pure: specs, model states and facts in, requests out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm_spark.core import paths
from vllm_spark.core.refusal import Refusal, RefusedError
from vllm_spark.deploy import budgets, checks, images
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.pull.hub_cache import HubRequest
from vllm_spark.transfer import images as transfer_images
from vllm_spark.transfer import weights
from vllm_spark.transfer.site import PullSite, PullSteps, models


def questions(specs: Sequence[Spec]) -> dict[str, Any]:
    """Return the arguments of spark_facts for a host with these specs."""
    names = [image for spec in specs for image in images.questions(spec)]
    hubs = [spec.site.hub_dir for spec in specs]
    return {"images": list(dict.fromkeys(names)), "fabric": True, "disks": list(dict.fromkeys(hubs))}


def model_state_request(specs: Sequence[Spec]) -> HubRequest:
    """Return the request of vllm_model_state for the states of the models."""
    return {"hub": specs[0].site.hub_dir, "sources": [model.ref() for model in models(specs)]}


def programs() -> dict[str, str]:
    """Return the modules of node/pull and what they need as text, by their path below host_layout.PULL_PROGRAM_DIR.

    They form a package of their own, so that an installed toolkit on the host does not shadow them.
    """
    names = ("host_job.py", "host_layout.py", "shared_blobs.py", "state_file.py", "unix_http.py")
    shared = [paths.NODE / name for name in names]
    files = [*shared, *sorted((paths.NODE / "pull").glob("*.py"))]
    return {
        **dict.fromkeys(("vllm_spark/__init__.py", "vllm_spark/node/__init__.py"), ""),
        **{f"vllm_spark/node/{file.relative_to(paths.NODE)}": file.read_text(encoding="utf-8") for file in files},
    }


def steps(site: PullSite, host: str) -> PullSteps:
    """Return the steps of one host. Raises RefusedError with every refusal of this host."""
    all_steps = {name: PullSteps() for name in site.specs}
    weights.plan(site, all_steps)
    refusals: list[Refusal] = [
        *checks.docker_refusals(site.facts[host]),
        *(budgets.refusals(site.specs[host][0], site.facts[host]) if site.specs[host] else ()),
        *weights.disk_refusals(site, host),
        *transfer_images.plan(site, all_steps)[host],
    ]
    if refusals:
        raise RefusedError(refusals)
    all_steps[host].whole = not any(own.lines for own in all_steps.values())
    return all_steps[host]


def verify(site: PullSite, host: str) -> None:
    """Check the result of a pull. Raises RefusedError with everything that is incomplete or unverified on a host.

    A difference between the Sparks of a deployment is reported at its head.
    """
    refusals = [*weights.incomplete(site, host), *transfer_images.differing(site, host)]
    if refusals:
        raise RefusedError(refusals)
