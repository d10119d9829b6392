"""What a pull knows of the Sparks, and what it has them do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_spark.core.refusal import RefusedError
from vllm_spark.core.types import Facts
from vllm_spark.inventory.spec import Spec
from vllm_spark.network import fabric
from vllm_spark.recipe import hub_cache

Look = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PulledModel:
    """A model or drafter at its commit. `size` is what the recipe says, for as long as nobody knows better."""

    repository: str
    commit: str
    size: int

    @property
    def folder(self) -> str:
        return hub_cache.hub_folder(self.repository)

    def request(self) -> dict[str, Any]:
        return {"repository": self.repository, "folder": self.folder, "commit": self.commit}

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit[:12]}"


def models(specs: Sequence[Spec]) -> list[PulledModel]:
    """Every model and drafter, each once."""
    sources = [source for spec in specs for source in (spec.recipe["model"], spec.recipe.get("drafter")) if source]
    return list(
        dict.fromkeys(PulledModel(s["repository"], s["revision"], int(s.get("size_bytes", 0))) for s in sources)
    )


@dataclass(slots=True)
class PullSteps:
    """What one Spark does: requests to the programs of src/vllm_spark/node. Empty where there is nothing to do; `lines`
    is what an operator reads first."""

    pulls: list[str] = field(default_factory=list)  # images straight from their registry
    shelved: list[dict[str, Any]] = field(default_factory=list)  # through its own shelf, from outside or a bundle
    shelf: dict[str, Any] = field(default_factory=dict)  # what it gives of that to others
    over: list[dict[str, Any]] = field(default_factory=list)  # through its own shelf, from another Spark's
    made: dict[str, Any] = field(default_factory=dict)  # a derived image, as roles/vllm_image takes it
    platform: str = ""
    fetch: dict[str, Any] = field(default_factory=dict)
    fetch_words: list[str] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)  # what it takes from the bundle
    give: dict[str, Any] = field(default_factory=dict)
    take: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PullSite:
    """The Sparks of a run, by host in the inventory's order: what they shall have, what they have. With `bundled` what
    would come from outside comes from the bundle."""

    wanted: Mapping[str, Sequence[Spec]]
    looks: Mapping[str, Sequence[Look]]
    facts: Mapping[str, Facts]
    toolkit: str
    bundled: bool = False

    def address(self, giver: str, taker: str) -> str:
        """The giver's address on a fabric that joins the two, or nothing."""
        try:
            return fabric.choose({host: self.facts[host]["fabric"] for host in (giver, taker)})[giver].address
        except RefusedError:
            return ""

    def look(self, host: str, model: PulledModel) -> Look:
        asked = (model.folder, model.commit)
        return next((look for look in self.looks[host] if (look["folder"], look["commit"]) == asked), {})

    def has(self, host: str, image: str) -> bool:
        return self.facts[host]["images"].get(image) is not None

    def hub(self, host: str) -> str:
        return self.wanted[host][0].site.hub_dir


def is_whole(look: Look) -> bool:
    """All files are there, by their manifest."""
    return bool(look.get("manifest")) and not look["missing"]
