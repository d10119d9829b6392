"""The steps by which a host gets its image: pull, build, or copy from another Spark. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.core.platforms import MACHINES
from vllm_spark.core.ports import IMAGES_PORT
from vllm_spark.deploy.host_context import HostContext
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.host_layout import IMAGE_CACHE_DIR
from vllm_spark.node.pull.image_pull import ImageRequest, ImageServerRequest, PushRequest, UpstreamRequest
from vllm_spark.recipe import derived_image, image_name


@dataclass(slots=True)
class ImageSteps:
    """Steps in this order: requests of the jobs in transfer/jobs.py, and build contexts with their commands.

    `pushes` take built images out of Docker into the blob cache, `server` serves that cache, and `takes` pull from the
    server of another Spark. A step that is not needed is empty.
    """

    pulls: list[ImageRequest] = field(default_factory=list)
    builds: list[Mapping[str, Any]] = field(default_factory=list)
    pushes: list[PushRequest] = field(default_factory=list)
    server: ImageServerRequest | dict[str, Any] = field(default_factory=dict)
    takes: list[ImageRequest] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.pulls or self.builds or self.pushes or self.server or self.takes)

    def lines(self, spec: Spec, *, acts: bool = False) -> list[str]:
        """Return the lines that an operator reads about them, conditional for a verb that does not act."""
        if self.builds:
            return [f"image {spec.image} {'is' if acts else 'would be'} built here from {spec.source}"]
        if self.takes:
            comes = "comes" if acts else "would come"
            return [f"image {spec.image} {comes} from {spec.deployment.hosts[0]}, over the fabric"]
        return [f"image {spec.source} is not here yet"] if self.pulls else []

    def serve(self, address: str, repository: str, upstream: UpstreamRequest | None) -> None:
        """Add a repository of the local registry to those that this host serves to other Sparks."""
        repositories = {**self.server.get("repositories", {}), repository: upstream}
        self.server = ImageServerRequest(
            address=address, port=IMAGES_PORT, folder=IMAGE_CACHE_DIR, repositories=repositories
        )


def any_step(plan: Mapping[str, Any]) -> bool:
    """Return True if ImageSteps as JSON contain a step."""
    return bool(ImageSteps(**plan))


def questions(spec: Spec) -> list[str]:
    """Return the images whose presence the facts module checks."""
    return list(dict.fromkeys([spec.image, spec.base]))


def platform_of(spec: Spec, machine: str) -> str:
    """Return the platform of an image for the machine of a host (`uname -m`)."""
    return next((name for name in spec.platforms if MACHINES.get(name) == machine), spec.platforms[0])


def registry_of(spec: Spec) -> UpstreamRequest:
    """Return the repository of a spec's image in its registry."""
    host, repository = image_name.split(spec.recipe["image"]["repository"])
    return {"host": host, "repository": repository}


def server_of(host: str, address: str, image: str) -> UpstreamRequest:
    """Return the image server of another Spark as the source of an image."""
    return {"host": host, "repository": image_name.path_of(image), "url": f"http://{address}:{IMAGES_PORT}"}


def pull_request(spec: Spec, machine: str, upstream: UpstreamRequest, *, keep: bool) -> ImageRequest:
    """Return the request to pull the base image of a spec. `keep` stores its layers for another Spark."""
    return {
        "image": spec.base,
        "digest": spec.digest,
        "platform": platform_of(spec, machine),
        "folder": IMAGE_CACHE_DIR,
        "keep": keep,
        "upstream": upstream,
    }


def steps(host: HostContext, others: Sequence[HostContext], toolkit: str, *, online: bool = True) -> ImageSteps:
    """Return the steps of one rank. The head builds, and a worker receives the image of the head: builds are not
    reproducible to the byte, and all ranks must run one image. `others` are the other hosts in the order of their
    ranks, `online`: the registry can be asked."""
    spec, own, machine = host.spec, host.image, host.facts["machine"]
    todo, derived = ImageSteps(), spec.derived
    registry = registry_of(spec)
    if derived is None:
        if own is None:
            todo.pulls.append(pull_request(spec, machine, registry, keep=False))
        return todo
    heads = own if spec.rank == 0 else others[0].image
    workers = [own] if spec.rank else [one.image for one in others]
    if spec.rank == 0 and own is None:
        if host.facts["images"].get(spec.base) is None:
            todo.pulls.append(pull_request(spec, machine, registry, keep=bool(others)))
        todo.builds.append(_build(spec, derived, toolkit))
    if others and (heads is None or any(image != heads for image in workers)):
        _copy(todo, spec, machine, registry if online else None)
    return todo


def _build(spec: Spec, derived: derived_image.DerivedImage, toolkit: str) -> dict[str, Any]:
    folder = derived.folder
    return {
        "image": derived.image,
        "base": spec.source,
        "folders": derived.folders,
        "files": [{"path": f"{folder}/{path}", "content": text} for path, text in sorted(derived.files.items())],
        "downloads": derived.downloads,
        "command": derived_image.command(derived, toolkit, spec.site.pip_index),
        "log": f"{folder}/build.log",
    }


def _copy(todo: ImageSteps, spec: Spec, machine: str, registry: UpstreamRequest | None) -> None:
    """Add the head's or the worker's part of a copy. The digest is that of the head's push."""
    assert spec.group is not None  # noqa: S101  a worker has one; this tells the type checker
    if spec.rank == 0:
        todo.pushes.append({"image": spec.image, "folder": IMAGE_CACHE_DIR, "upstream": registry})
        todo.serve(spec.group.head, image_name.path_of(spec.image), registry)
    else:
        head = server_of(spec.deployment.hosts[0], spec.group.head, spec.image)
        take = pull_request(spec, machine, head, keep=False)
        todo.takes.append({**take, "image": spec.image, "digest": ""})
