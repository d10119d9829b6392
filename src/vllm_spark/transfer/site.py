"""State of the Sparks of a pull, and the steps of each Spark. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from vllm_spark.core import units
from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Document, Facts
from vllm_spark.deploy.images import ImageSteps
from vllm_spark.inventory import fabric
from vllm_spark.inventory.spec import Spec
from vllm_spark.node.pull.hub_cache import HubRequest, ModelState
from vllm_spark.node.pull.image_pull import ImageRequest
from vllm_spark.node.pull.model_files import ModelRef, Source, is_taken, source_of
from vllm_spark.node.pull.range_client import PeerRequest
from vllm_spark.node.pull.range_server import FileServerRequest
from vllm_spark.recipe import hub_cache


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model or drafter at its commit. `size` is the recipe's number of bytes, used until a manifest exists.

    `manifest` is the sha256 of its manifest in the lock file, or empty. `more` are files of other kinds than an engine
    reads, which a recipe mounts: path -> sha256.
    """

    repository: str
    commit: str
    size: int = field(compare=False)
    manifest: str = field(default="", compare=False)
    more: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def folder(self) -> str:
        return hub_cache.hub_folder(self.repository)

    def ref(self) -> ModelRef:
        """Return the reference to this model in a request."""
        ref = ModelRef(repository=self.repository, folder=self.folder, commit=self.commit)
        if self.manifest:
            ref["manifest"] = self.manifest
        if self.more:
            ref["more"] = self.more
        return ref

    def source(self, hub: Path) -> Source:
        """Return the model in a hub cache, with the manifest of the lock file as the only accepted one."""
        return source_of(str(hub), self.ref())

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit[:12]}"


def models(specs: Sequence[Spec]) -> list[PulledModel]:
    """Return every model and drafter of the specs once, with the files that any of their recipes mounts."""
    known: dict[PulledModel, PulledModel] = {}
    for spec in specs:
        for source in filter(None, (spec.recipe["model"], spec.recipe.get("drafter"))):
            manifest = spec.manifests.get(f"{source['repository']}@{source['revision']}", "")
            more = _mounted(spec.recipe) if source is spec.recipe["model"] else {}
            size = int(source.get("size_bytes", 0))
            model = PulledModel(source["repository"], source["revision"], size, manifest, more)
            before = known.get(model, model)
            known[model] = replace(model, manifest=manifest or before.manifest, more={**before.more, **more})
    return list(known.values())


def _mounted(recipe: Document) -> dict[str, str]:
    """Return path -> sha256 of the files that a recipe mounts from its model and that are not taken anyway."""
    mounts = [mount for mount in recipe.get("mounts", []) if mount["from"] == "model"]
    return {mount["path"]: mount["sha256"] for mount in mounts if not is_taken(mount["path"])}


class CopyRound(TypedDict):
    """What one Spark serves and fetches in one round of copies. A server without sources is not started."""

    server: FileServerRequest
    fetches: list[PeerRequest]


@dataclass(slots=True)
class PullSteps:
    """Steps of one Spark: requests to the jobs of transfer/jobs.py. A step that is not needed is empty.

    `lines` describe the steps to an operator. `whole`: no Spark of the pull has a step.
    """

    images: ImageSteps = field(default_factory=ImageSteps)  # argument of roles/vllm_image
    bundle_pulls: list[ImageRequest] = field(default_factory=list)  # from the bundle into the own blob cache
    hub_fetch: HubRequest = field(default_factory=HubRequest)
    hub_fetch_argv: list[str] = field(default_factory=list)
    bundle_fetch: PeerRequest = field(default_factory=PeerRequest)
    copy_rounds: list[CopyRound] = field(default_factory=list)  # as many on each Spark, and each at the same time
    lines: list[str] = field(default_factory=list)
    whole: bool = True

    def pulled_images(self) -> set[str]:
        """Return the images that these steps pull."""
        return {pull["image"] for pull in [*self.bundle_pulls, *self.images.pulls, *self.images.takes]}

    def copy_round(self, number: int) -> CopyRound:
        """Return a round of copies by its number, which begins at 0."""
        while len(self.copy_rounds) <= number:
            self.copy_rounds.append({"server": FileServerRequest(), "fetches": []})
        return self.copy_rounds[number]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PullSite:
    """The Sparks of a run by host, in the order of the inventory: specs, states of the models, facts.

    With `bundled` the bundle replaces hub and registries.
    """

    specs: Mapping[str, Sequence[Spec]]
    model_states: Mapping[str, Sequence[ModelState]]
    facts: Mapping[str, Facts]
    toolkit: str
    bundled: bool = False

    def address(self, sender: str, receiver: str) -> str:
        """Return the sender's address on a fabric that joins the two hosts, or an empty string."""
        try:
            return fabric.choose({host: self.facts[host]["fabric"] for host in (sender, receiver)})[sender].address
        except RefusedError:
            return ""

    def state(self, host: str, model: PulledModel) -> ModelState | None:
        """Return the state of a model on a host, or None if it was not read."""
        key = (model.folder, model.commit)
        return next((s for s in self.model_states[host] if (s["folder"], s["commit"]) == key), None)

    def is_complete(self, host: str, model: PulledModel) -> bool:
        """Return True if all files of the manifest are on the host, verified or not."""
        state = self.state(host, model)
        return state is not None and state["manifest"] and not state["missing"]

    def missing_bytes(self, host: str, model: PulledModel) -> int:
        """Return the bytes of a model that a host is missing; without a manifest the size in the recipe."""
        state = self.state(host, model)
        return state["missing"] if state and state["manifest"] else model.size

    def missing_words(self, host: str, model: PulledModel) -> str:
        """Return the size of what a host is missing, e.g. `1.5 GiB`; of an unknown one the room for it."""
        if self.knows_size(host, model):
            return units.gib(self.missing_bytes(host, model))
        return f"of unknown size; {units.gib(self.free_bytes(host))} are free for it"

    def knows_size(self, host: str, model: PulledModel) -> bool:
        """Return False for a model whose recipe has no size, on a host without its manifest."""
        state = self.state(host, model)
        return bool(model.size or (state and state["manifest"]))

    def free_bytes(self, host: str) -> int:
        """Return the free bytes of the disk with the models of a host."""
        return int(self.facts[host]["disks"][self.hub(host)]["free"])

    def has_image(self, host: str, image: str) -> bool:
        return self.facts[host]["images"].get(image) is not None

    def hub(self, host: str) -> str:
        return self.specs[host][0].site.hub_dir
