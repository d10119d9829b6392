"""Free space where a deploy and a server write."""

from __future__ import annotations

from collections.abc import Iterator

from vllm_spark.core.types import DiskFacts
from vllm_spark.core.units import GB
from vllm_spark.deploy.check_registry import Observation, check
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.recipe.hub_cache import snapshot
from vllm_spark.sizing import memory

# An image of 18.5 to 20 GB unpacked, beside its compressed layers while they are unpacked.
IMAGE_BYTES = 30 << 30
# Own figure: compile caches, the journal and the logs of Docker.
REST_BYTES = 5 << 30


@check(
    "disk-nearly-full",
    runbook="disk-full",
    severity="warning",
    needs=("disks", "docker", "images", "paths"),
    what="{path} of {host} has {free} free, and {what} takes {needed}",
    fix='`ssh -t {host} "df -h {path}; sudo docker system df"`, then delete images and models that nothing serves.',
    source="size of the image: vllm#40991 (18.5 GB) and docs/runbooks/disk-full.md; of the model: the recipe",
)
def disk_nearly_full(context: HostContext) -> Iterator[Observation]:
    """Yield each folder whose disk has less space than the next write or the host needs. Folders on one disk are
    reported once, for the largest write."""
    reported = set()
    disks = [(path, disk, *_next_write(context, path)) for path, disk in _disks(context)]
    for path, disk, what, size in sorted(disks, key=lambda entry: -entry[3]):
        if disk["free"] < size and (disk["total"], disk["free"]) not in reported:
            reported.add((disk["total"], disk["free"]))
            yield Observation(
                {"path": path, "free": _gb(disk["free"]), "what": what, "needed": _gb(size)},
                evidence=f"{path} {_gb(disk['free'])} free of {_gb(disk['total'])}",
            )


def _disks(context: HostContext) -> Iterator[tuple[str, DiskFacts]]:
    docker = context.docker
    root, disk = docker.get("root"), docker.get("disk")
    if root and disk:
        yield root, disk
    layers, layers_disk = docker.get("containerd_root"), docker.get("containerd_disk")
    if layers and layers_disk:
        yield layers, layers_disk
    yield from (context.facts.get("disks") or {}).items()


def _next_write(context: HostContext, path: str) -> tuple[str, int]:
    """Return (what will be written below this folder, its bytes)."""
    spec, rest = context.spec, ("what a server writes beside it (compile caches, logs)", REST_BYTES)
    images = context.docker.get("containerd_root") or context.docker.get("root")
    if path == images and (context.facts.get("images") or {}).get(spec.base) is None:
        return "the image, while it is unpacked,", IMAGE_BYTES
    model = snapshot(spec.site.hub_dir, spec.recipe["model"])
    if path == spec.site.hub_dir and not (context.facts.get("paths") or {}).get(model):
        return max(rest, ("the model", memory.file_bytes(spec.recipe)), key=lambda write: write[1])
    return rest


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"
