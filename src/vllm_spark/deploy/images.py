"""The steps by which a host gets its image: pull, build, or transfer from the head. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_spark.core.ports import LOOPBACK, REGISTRY_PORT
from vllm_spark.core.types import Facts
from vllm_spark.inventory.spec import Spec
from vllm_spark.recipe import derived_image


@dataclass(frozen=True, slots=True)
class ImageSteps:
    """Steps in this order. `build` is a build context with its command, `transfer` the two ends; empty if not used."""

    pull: bool
    build: Mapping[str, Any] = field(default_factory=dict)
    transfer: Mapping[str, Any] = field(default_factory=dict)

    def lines(self, spec: Spec, *, acts: bool = False) -> list[str]:
        """Return the lines that an operator reads about them, conditional for a verb that does not act."""
        if self.build:
            return [f"image {spec.image} {'is' if acts else 'would be'} built here from {spec.base}"]
        if self.transfer and spec.rank:
            comes = "comes" if acts else "would come"
            return [f"image {spec.image} {comes} from {spec.deployment.hosts[0]}, over the fabric"]
        return [f"image {spec.image} is not here yet"] if self.pull else []


def any_step(plan: Mapping[str, Any]) -> bool:
    """Return True if a plan as JSON, which has the fields of ImageSteps, pulls, builds or transfers an image."""
    return bool(plan["pull"] or plan["build"] or plan["transfer"])


def questions(spec: Spec) -> list[str]:
    """Return the images whose presence the facts module checks."""
    return list(dict.fromkeys([spec.image, spec.base]))


def steps(spec: Spec, facts: Facts, peers: Sequence[Facts], toolkit: str) -> ImageSteps:
    """Return the steps of one rank. The head builds, and a worker receives the image of the head: builds are not
    reproducible to the byte, and all ranks must run one image."""
    derived, own = spec.derived, facts["images"].get(spec.image)
    if derived is None:
        return ImageSteps(pull=own is None)
    heads = own if spec.rank == 0 else peers[0]["images"].get(spec.image)
    workers = (own if spec.rank else peers[0]["images"].get(spec.image)) if peers else heads
    building = spec.rank == 0 and own is None
    return ImageSteps(
        pull=building and facts["images"].get(spec.base) is None,
        build=_build(derived, toolkit, spec.site.pip_index) if building else {},
        transfer=_transfer(spec) if peers and (heads is None or workers != heads) else {},
    )


def _build(derived: derived_image.DerivedImage, toolkit: str, pip_index: str) -> dict[str, Any]:
    folder = derived.folder
    return {
        "folders": sorted({folder, *(f"{folder}/{path.rpartition('/')[0]}".rstrip("/") for path in derived.files)}),
        "files": [{"path": f"{folder}/{path}", "content": text} for path, text in sorted(derived.files.items())],
        "overlay": {**derived.overlay, "path": f"{folder}/overlay.tar.gz"} if derived.overlay else {},
        "command": derived_image.command(derived, toolkit, pip_index),
        "log": f"{folder}/build.log",
    }


def _transfer(spec: Spec) -> dict[str, Any]:
    assert spec.pair is not None  # noqa: S101  a worker has one; this tells the type checker
    return {
        "rank": spec.rank,
        "head": spec.pair.head,
        "head_host": spec.deployment.hosts[0],
        "port": REGISTRY_PORT,
        "image": spec.image,
        "through": f"{LOOPBACK}:{REGISTRY_PORT}/{spec.image}",
    }
